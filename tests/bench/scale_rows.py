"""Whether cost grows with what changes only: lookups in a larger index, and removal per block of a larger pod.

A row's peer is the same in the smallest index of the run, so its ratio says by how much a larger one is slower.
"""

import subprocess
import sys
from typing import Final

import msgspec

from tests.bench.index_rows import ROOT
from tests.bench.rows import Row, collected, row

_BLOCKS: Final = (100_000, 1_000_000, 10_000_000)
_QUICK_BLOCKS: Final = (32_000, 64_000)
_ROUNDS: Final = 3
_DEADLINE_S: Final = 300
_UNITS: Final = {"match.shared": "µs", "match.one": "µs", "match.miss": "µs", "remove_pod": "µs/block"}


def rows(*, rounds: int, quick: bool) -> list[Row]:
    """All rows; sizes take turns within a round."""
    sizes = _QUICK_BLOCKS if quick else _BLOCKS
    rounds = min(rounds, _ROUNDS)
    measured = [{blocks: _run(blocks) for blocks in sizes} for _ in range(rounds)]
    values = {blocks: collected([each[blocks] for each in measured]) for blocks in sizes}
    least = f"at {_name(sizes[0])} blocks"
    return [
        row(f"scale.{measure}.{_name(blocks)}", unit, values[blocks][measure], least, values[sizes[0]][measure])
        for measure, unit in _UNITS.items()
        for blocks in sizes
    ]


def _name(blocks: int) -> str:
    return f"{blocks // 1000}k"


def _run(blocks: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.scale_ours", str(blocks)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=_DEADLINE_S,
    )
    return msgspec.json.decode(done.stdout, type=dict[str, float])
