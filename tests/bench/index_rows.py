"""The index against Dynamo's RadixTree: per round a fresh process of each, one after the other, on the same work."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.bench import environment
from tests.bench.rows import Peer, Row, collected, row

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCKS: Final = 1_000_000
_QUICK_BLOCKS: Final = 8_000
_PUBLISHERS: Final = (8, 64)
_LOOKUP_PUBLISHERS: Final = 64
_DEADLINE_S: Final = 300
_INGEST: Final = {
    "apply": "µs/block",
    "frames": "frames/cpu-s",
    "memory": "B/block",
    "evict": "µs/block",
    "evict.single": "µs/block",
    "remove_pod": "µs/block",
}
_LOOKUP: Final = {"match.shared": "µs", "match.one": "µs", "match.miss": "µs", "hash": "µs"}


def rows(*, rounds: int, quick: bool, blocks: int | None, peers: bool) -> list[Row]:
    """All rows. Those of another size than the usual one carry it in their names."""
    blocks = blocks or (_QUICK_BLOCKS if quick else _BLOCKS)
    size = "" if blocks == _BLOCKS else f".{blocks // 1000}k"
    peer_python = _peer() if peers else None
    made: list[Row] = []
    for publishers in _PUBLISHERS:
        values, peer = _measured(rounds, peer_python, publishers, blocks)
        units = _INGEST | (_LOOKUP if publishers == _LOOKUP_PUBLISHERS else {})
        made += [
            row(f"index.{m}.p{publishers}{size}", unit, values[m], peer.name, peer.values.get(m, ()))
            for m, unit in units.items()
        ]
        values, peer = _measured(rounds, peer_python, publishers, blocks, "free")
        apply, theirs = values["apply"], peer.values.get("apply", ())
        made.append(row(f"index.apply.free.p{publishers}{size}", _INGEST["apply"], apply, peer.name, theirs))
    return made


def _measured(
    rounds: int, peer_python: str | None, publishers: int, blocks: int, *how: str
) -> tuple[dict[str, list[float]], Peer]:
    """Ours and the peer's, in turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_run(sys.executable, "tests.bench.index_ours", publishers, blocks, *how))
        if peer_python:
            theirs.append(_run(peer_python, "tests.bench.index_dynamo", publishers, blocks, *how))
    return collected(ours), Peer(f"{environment.DYNAMO} RadixTree", collected(theirs))


def _peer() -> str | None:
    try:
        return str(environment.peer(environment.DYNAMO) / "python")
    except environment.PeerMissing as reason:
        sys.stderr.write(f"bench: index without a peer: {reason}\n")
        return None


def _run(python: str, module: str, publishers: int, blocks: int, *how: str) -> dict[str, float]:
    done = subprocess.run(
        [python, "-m", module, str(publishers), str(blocks), *how],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=_DEADLINE_S,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, float])
