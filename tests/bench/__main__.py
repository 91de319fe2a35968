"""`python -m tests.bench`: what index, decisions, event intake, tokens, simulations and requests cost, beside peers."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tests.bench import (
    decision_rows,
    index_rows,
    intake_rows,
    metrics_rows,
    peers,
    proxy_rows,
    scale_rows,
    sim_rows,
    token_rows,
)
from tests.bench.rows import Row, machine, table

_ROUNDS: Final = 5
_SECTIONS: Final[dict[str, Callable[[argparse.Namespace], list[Row]]]] = {
    "index": lambda args: index_rows.rows(
        rounds=args.rounds, quick=args.quick, blocks=args.blocks, peers=not args.no_peers
    ),
    "scale": lambda args: scale_rows.rows(rounds=args.rounds, quick=args.quick),
    "decision": lambda args: decision_rows.rows(rounds=args.rounds, quick=args.quick),
    "metrics": lambda args: metrics_rows.rows(rounds=args.rounds, quick=args.quick),
    "intake": lambda args: intake_rows.rows(rounds=args.rounds, quick=args.quick),
    "tokens": lambda args: token_rows.rows(rounds=args.rounds, quick=args.quick, peers=not args.no_peers),
    "sim": lambda args: sim_rows.rows(rounds=args.rounds, quick=args.quick, peers=not args.no_peers),
    "proxy": lambda args: proxy_rows.rows(
        rounds=args.rounds, quick=args.quick, peers={} if args.no_peers else args.peers
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    args = _parser().parse_args(argv)
    args.rounds = args.rounds or (1 if args.quick else _ROUNDS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is stopped
    load, began = os.getloadavg()[0], datetime.now(UTC)
    rows: list[Row] = []
    for section in args.only:
        sys.stderr.write(f"bench: {section} …\n")
        rows += _SECTIONS[section](args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    dated = args.out.with_name(f"{args.out.stem}-{began:%Y-%m-%dT%H%M%S}Z{args.out.suffix}")
    for file in (args.out, dated):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    loads = f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    written = f"written to {args.out}, and to stay {dated.name}"
    sys.stdout.write(f"{table(rows)}\n\nmedians of {args.rounds}; {machine()}; {loads}; {written}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", type=_sections, default=list(_SECTIONS), metavar="SECTION,…", help=_names())
    parser.add_argument("--rounds", type=int, help=f"measurements per value, default {_ROUNDS}")
    parser.add_argument("--blocks", type=int, help="of the index in total, default 1000000")
    parser.add_argument("--quick", action="store_true", help="small and short: does it run, not how fast")
    parser.add_argument(
        "--peers",
        type=_peers,
        default=peers.DEFAULT,
        metavar="PEER,…",
        help=f"of proxy: all, or of {', '.join(peers.ALL)}",
    )
    parser.add_argument("--no-peers", action="store_true", help="ours alone; nothing is installed")
    parser.add_argument("--out", type=Path, default=index_rows.ROOT / "build/bench.json")
    return parser


def _sections(words: str) -> list[str]:
    sections = words.split(",")
    if not set(sections) <= _SECTIONS.keys():
        raise argparse.ArgumentTypeError(f"of {_names()}")
    return sections


def _peers(words: str) -> dict[str, peers.Peer]:
    names = list(peers.ALL) if words == "all" else words.split(",")
    if not set(names) <= peers.ALL.keys():
        raise argparse.ArgumentTypeError(f"all, or of {', '.join(peers.ALL)}")
    return {name: peers.ALL[name] for name in names}


def _names() -> str:
    return ", ".join(_SECTIONS)


if __name__ == "__main__":
    sys.exit(main())
