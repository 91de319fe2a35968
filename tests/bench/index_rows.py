"""The index against Dynamo's RadixTree: per round a fresh process of each, one after the other, on the same work."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tests.bench import environment
from tests.bench.rows import Peer, Row, collected, row
from tests.bench.workload import WAYS

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
        for way in WAYS:
            values, peer = _measured(rounds, peer_python, publishers, blocks, way)
            made += [
                row(f"index.{m}.p{publishers}{size}", unit, values[of], peer.name, peer.values.get(of, ()))
                for m, of, unit in _rows_of(way, publishers)
            ]
    return made


def _rows_of(way: str, publishers: int) -> Iterable[tuple[str, str, str]]:
    """Name, measure and unit."""
    if WAYS[way].only_ingest:
        return [(f"apply.{way}", "apply", _INGEST["apply"])]
    units = _INGEST | (_LOOKUP if publishers == _LOOKUP_PUBLISHERS else {})
    return [(measure, measure, unit) for measure, unit in units.items()]


def _measured(
    rounds: int, peer_python: str | None, publishers: int, blocks: int, way: str
) -> tuple[dict[str, list[float]], Peer]:
    """Ours and the peer's, in turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_run(sys.executable, "tests.bench.index_ours", publishers, blocks, way))
        if peer_python:
            theirs.append(_run(peer_python, "tests.bench.index_dynamo", publishers, blocks, way))
    return collected(ours), Peer(f"{environment.DYNAMO} RadixTree", collected(theirs))


def _peer() -> str | None:
    try:
        return str(environment.peer(environment.DYNAMO) / "python")
    except environment.PeerMissing as reason:
        sys.stderr.write(f"bench: index without a peer: {reason}\n")
        return None


def _run(python: str, module: str, publishers: int, blocks: int, way: str) -> dict[str, float]:
    done = subprocess.run(
        [python, "-m", module, str(publishers), str(blocks), way],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=_DEADLINE_S,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, float])
