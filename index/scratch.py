"""Memory in which many hashes are compared with parts of a table at once, made beforehand.

Of the time that numpy takes for some 64 numbers, most goes into making the result and into bringing two shapes
together. So results go into arrays that are there already, both operands have one shape, and where the question is
whether anything is so, the bytes of the result are asked.
"""

import struct
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy import add, bitwise_and, equal
from numpy.typing import NDArray

WINDOW: Final = 16
"""Slots of a table in which a hash may lie, from its home on."""

MARK_BYTES: Final = 2
WINDOW_OF_MARKS: Final = np.dtype((np.void, WINDOW * MARK_BYTES))

_KEPT: Final = 64
_LONGEST: Final = 512
"""How many scratches are kept, and of how many hashes each: 5 MB at most. What a longer one costs to make is little
beside its hashes."""

_HIGH: Final = 3 if sys.byteorder == "little" else 0
"""Of the four 16-bit parts of a hash the one of its high bits."""

Hashes = NDArray[np.int64]
Marks = NDArray[np.uint16]
Numbers = NDArray[np.int64]


def high_bits(hashes: Hashes) -> Marks:
    """The marks of hashes, as a view of them."""
    return hashes.view(np.uint16)[_HIGH::4]


class Scratch:
    """Arrays for `count` hashes.

    `look` fills `hashes`, whose bytes are `packed`, `marks` with their marks and `homes` with the slots where they are
    at home, and compares each mark with those in its window; `equal_bytes` holds a 1 for each that is equal. `turn`
    counts the looks, and `source` is what the last was for. The other arrays are for what lies in the table at `slots`.
    """

    __slots__ = (
        "_contents",
        "_empty",
        "_equal",
        "_equal_windows",
        "_high",
        "_mark_column",
        "_pack",
        "_wanted",
        "_wanted_flat",
        "equal_bytes",
        "hashes",
        "homes",
        "lying",
        "lying_bytes",
        "marks",
        "numbers",
        "packed",
        "slots",
        "source",
        "taken",
        "taken_bytes",
        "turn",
        "untaken_bytes",
    )

    def __init__(self, count: int) -> None:
        self.turn = 0
        self.source: Sequence[int] = ()
        self._pack = struct.Struct(f"={count}Q").pack_into
        self.packed = bytearray(count * 8)
        self.hashes: Hashes = np.frombuffer(self.packed, np.int64)
        self._high = high_bits(self.hashes)
        self.marks: Marks = np.empty(count, np.uint16)
        self._mark_column = self.marks[:, None]
        self._wanted: Marks = np.empty((count, WINDOW), np.uint16)
        self._wanted_flat = self._wanted.reshape(-1)
        self._contents: Marks = np.empty(count * WINDOW, np.uint16)
        self._empty: Marks = np.zeros(count * WINDOW, np.uint16)
        self.equal_bytes = bytearray(count * WINDOW)
        self._equal = np.frombuffer(self.equal_bytes, np.bool_)
        self._equal_windows = self._equal.reshape(count, WINDOW)
        self.homes: Numbers = np.empty(count, np.int64)
        self.slots: Numbers = np.empty(count, np.int64)
        self.numbers = np.empty(count, np.uint32)
        self.taken_bytes = bytearray(count * MARK_BYTES)
        self.taken: Marks = np.frombuffer(self.taken_bytes, np.uint16)
        self.untaken_bytes = bytes(self.taken_bytes)
        self.lying_bytes = bytearray(count * 8)
        self.lying: Hashes = np.frombuffer(self.lying_bytes, np.int64)

    def look(self, hashes: Sequence[int], mask: Numbers, windows: "NDArray[np.void]") -> None:
        """Compares the marks of hashes with those in their windows; `windows` has one for each home."""
        self.turn += 1
        self.source = hashes
        self._pack(self.packed, 0, *hashes)
        bitwise_and(self.hashes, mask, self.homes)
        self._contents = windows[self.homes].view(np.uint16)
        self.marks[...] = self._high
        self._wanted[...] = self._mark_column
        equal(self._contents, self._wanted_flat, self._equal)

    def first_equal(self) -> Numbers:
        """The slot of the first equal mark in each window, its first slot where there is none."""
        self._equal_windows.argmax(1, self.slots)
        return add(self.slots, self.homes, self.slots)

    def first_empty(self) -> Numbers:
        """The first empty slot of each window, its first slot where all are taken."""
        equal(self._contents, self._empty, self._equal)
        return self.first_equal()


class Scratches(dict[int, Scratch]):
    """A scratch for each count of hashes that was asked for."""

    def __missing__(self, count: int) -> Scratch:
        scratch = Scratch(count)
        if count <= _LONGEST:
            if len(self) == _KEPT:
                self.clear()
            self[count] = scratch
        return scratch
