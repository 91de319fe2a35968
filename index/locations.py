"""Where a publisher's blocks are: from the engine's hash to the number of the run, in about 40 bytes a block.

A dict would cost 90, half of them for the int object that holds the hash. Here the hashes lie packed in a table. The
low bits of a hash name its home, and it lies in the first of the 16 slots from there on that was empty: engine hashes
are digests, so homes are spread evenly. The run's number is in a second array at the same slot, and in a third the
hash's *mark*, its high 16 bits. One hash is looked for as 8 bytes in the 128 of its window. For the many of a usual
event the marks are compared first, in a handful of numpy calls, each well under a microsecond; one event in a hundred
finds an equal mark by chance, and then whole hashes are.

Where a window is full, a hash goes to a dict, until the table grows. So hashes that are not spread cost what they would
cost in a dict alone. So do those whose mark is 0, as an empty slot's is.
"""

# ruff: noqa: S101 - check() asserts

import sys
from array import array
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import numpy as np

from index.scratch import MARK_BYTES, WINDOW, WINDOW_OF_MARKS, Hashes, Marks, Numbers, Scratch, Scratches, high_bits

_HASH_BYTES: Final = 8
_WINDOW_BYTES: Final = WINDOW * _HASH_BYTES
_RUN_BYTES: Final = 4
_FIRST_HOMES: Final = 1024
_FULL: Final = 0.5
"""Of all homes. The table doubles then, so a quarter to a half are used; so few windows are full."""

_FEW: Final = 12
"""Fewer hashes are quicker looked at one by one."""

_AT_ONCE: Final = 1 << 13
"""Slots of a table that is doubled which are worked on together, so that they stay in the processor's cache."""

_MARK_SHIFT: Final = 48
_EMPTY: Final = bytes(_HASH_BYTES)


class Locations:
    """A mapping of unsigned 64-bit hashes to run numbers below 2**32."""

    __slots__ = (
        "_bytes",
        "_hashes",
        "_mark_bytes",
        "_mark_numbers",
        "_marks",
        "_mask",
        "_mask_array",
        "_numbers",
        "_overflow",
        "_probed",
        "_room",
        "_run_bytes",
        "_runs",
        "_scratches",
        "_turn",
        "_used",
        "_windows",
    )

    def __init__(self, scratches: Scratches | None = None) -> None:
        """Tables that are used in turn may share their scratches."""
        self._scratches = Scratches() if scratches is None else scratches
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._overflow: dict[int, int] = {}
        self._used = 0
        slots = _FIRST_HOMES + WINDOW
        self._lie_in(bytearray(slots * _HASH_BYTES), bytearray(slots * MARK_BYTES), bytearray(slots * _RUN_BYTES))

    def _lie_in(self, hashes: bytearray, marks: bytearray, runs: bytearray) -> None:
        """The table's memory, and the views of it: bytes and numbers for one hash, arrays for many."""
        self._bytes, self._mark_bytes, self._run_bytes = hashes, marks, runs
        self._hashes: Hashes = np.frombuffer(hashes, np.int64)
        self._mark_numbers = memoryview(marks).cast("H")
        self._marks: Marks = np.frombuffer(marks, np.uint16)
        self._numbers = memoryview(runs).cast("I")
        self._runs = np.frombuffer(runs, np.uint32)
        homes = len(self._hashes) - WINDOW
        self._windows = np.ndarray(homes, WINDOW_OF_MARKS, marks, strides=(MARK_BYTES,))
        self._mask = homes - 1
        self._mask_array: Numbers = np.array(self._mask, np.int64)
        self._room = int(_FULL * homes)
        self._probed: Scratch | None = None
        self._turn = 0

    def __len__(self) -> int:
        return self._used + len(self._overflow)

    @property
    def table_bytes(self) -> int:
        """Memory of the packed table, without what overflowed from it. O(1)."""
        return len(self._bytes) + len(self._mark_bytes) + len(self._run_bytes)

    def __iter__(self) -> Iterator[int]:
        """Every hash. O(table)."""
        yield from self._hashes[self._hashes != 0].view(np.uint64).tolist()
        yield from self._overflow

    def __contains__(self, block_hash: int) -> bool:
        return self._slot(block_hash) >= 0 or block_hash in self._overflow

    def get(self, block_hash: int) -> int | None:
        """The run's number; None if the hash is not there."""
        slot = self._slot(block_hash)
        return self._numbers[slot] if slot >= 0 else self._overflow.get(block_hash)

    def move(self, hashes: Sequence[int], number: int) -> None:
        """Another number for hashes that are there."""
        slots, elsewhere = self._find_all(hashes)
        if slots is not None:
            self._runs[slots] = number
        self._move_each(elsewhere, number)

    def any_of(self, hashes: Sequence[int], distinct: AbstractSet[int] | None = None) -> bool:
        """Whether one of the hashes is there; `distinct` are the same, if the caller has a set of them."""
        overflow = self._overflow
        if overflow:
            few = distinct if distinct is not None and len(overflow) < len(distinct) else None
            if not (overflow.keys().isdisjoint(hashes) if few is None else few.isdisjoint(overflow)):
                return True
        if len(hashes) < _FEW:
            return any(self._slot(block_hash) >= 0 for block_hash in hashes)
        return 1 in self._look(hashes).equal_bytes and any(self._slot(block_hash) >= 0 for block_hash in hashes)

    def all_of(self, hashes: Sequence[int]) -> bool:
        """Whether all of the hashes, which differ, are there."""
        _, elsewhere = self._find_all(hashes)
        return all(block_hash in self for block_hash in elsewhere)

    def packed(self, hashes: Sequence[int]) -> bytes | bytearray:
        """The hashes side by side, 8 bytes each, until other hashes are asked about."""
        scratch = self._probe_of(hashes)
        return array("Q", hashes).tobytes() if scratch is None else scratch.packed

    def put(self, hashes: Sequence[int], number: int) -> None:
        """Adds hashes that differ and are not there. Amortized O(hashes); where the table doubles, O(table)."""
        while self._used + len(hashes) > self._room:
            self._double()
        if len(hashes) < _FEW:
            self._put_each(hashes, number)
        else:
            self._put_all(self._probe_of(hashes) or self._look(hashes), number)
        self._probed = None

    def drop(self, hashes: Sequence[int]) -> None:
        """Removes hashes that are there."""
        slots, elsewhere = self._find_all(hashes)
        if slots is not None:
            self._hashes[slots] = 0
            self._marks[slots] = 0
            self._used -= len(slots)
        self._drop_each(elsewhere)
        self._probed = None

    def check(self) -> None:
        """Asserts that marks agree with hashes, and that each is in its window, once. O(table)."""
        assert np.array_equal(high_bits(self._hashes), self._marks), "a mark is not its hash's"
        slots = self._hashes.nonzero()[0]
        assert len(slots) == self._used <= self._room, "hashes are miscounted"
        assert ((slots - (self._hashes[slots] & self._mask)) & -WINDOW == 0).all(), "a hash is outside its window"
        assert len(set(self)) == len(self), "a hash is there twice"

    def _look(self, hashes: Sequence[int]) -> Scratch:
        scratch = self._scratches[len(hashes)]
        scratch.look(hashes, self._mask_array, self._windows)
        self._probed, self._turn = scratch, scratch.turn
        return scratch

    def _probe_of(self, hashes: Sequence[int]) -> Scratch | None:
        """The scratch in which these hashes were looked for, if that still holds."""
        scratch = self._probed
        if scratch is not None and scratch.source is hashes and scratch.turn == self._turn:
            return scratch
        return None

    def _put_all(self, scratch: Scratch, number: int) -> None:
        """Puts hashes that were looked for."""
        if 1 in scratch.equal_bytes and np.count_nonzero(scratch.marks) < len(scratch.marks):
            self._put_each(scratch.source, number)
            return
        slots = scratch.first_empty()
        self._marks.take(slots, None, scratch.taken, "clip")
        if scratch.taken_bytes != scratch.untaken_bytes:
            self._put_fitting(scratch, number)
            return
        self._hashes[slots] = scratch.hashes
        self._marks[slots] = scratch.marks
        scratch.numbers.fill(number)
        self._runs[slots] = scratch.numbers
        self._hashes.take(slots, None, scratch.lying, "clip")
        self._used += len(slots)
        if scratch.lying_bytes != scratch.packed:  # of several that came for one slot, the last lies there
            left = [scratch.source[at] for at in (scratch.lying != scratch.hashes).nonzero()[0].tolist()]
            self._used -= len(left)
            self._put_each(left, number)

    def _put_fitting(self, scratch: Scratch, number: int) -> None:
        """The same where windows are full."""
        fits = scratch.taken == 0
        hashes, slots = scratch.hashes[fits], scratch.slots[fits]
        self._hashes[slots] = hashes
        self._marks[slots] = scratch.marks[fits]
        self._runs[slots] = number
        left = _ints(hashes[self._hashes.take(slots) != hashes])
        self._used += len(slots) - len(left)
        self._put_each(left, number)
        self._overflow.update(dict.fromkeys(_ints(scratch.hashes[~fits]), number))

    def _find_all(self, hashes: Sequence[int]) -> tuple[Numbers | None, Sequence[int]]:
        """The slots of hashes that lie in the table, and the other hashes; all are others where they are few."""
        if len(hashes) < _FEW:
            return None, hashes
        scratch = self._look(hashes)
        self._probed = None
        if _EMPTY in scratch.packed:
            return None, hashes
        slots = scratch.first_equal()
        self._hashes.take(slots, None, scratch.lying, "clip")
        if scratch.lying_bytes == scratch.packed:
            return slots, ()
        elsewhere = scratch.lying != scratch.hashes
        return slots[~elsewhere], _ints(scratch.hashes[elsewhere])

    def _put_each(self, hashes: Sequence[int], number: int) -> None:
        for block_hash in hashes:
            mark = block_hash >> _MARK_SHIFT
            slot = self._find(_EMPTY, block_hash) if mark else -1
            if slot < 0:
                self._overflow[block_hash] = number
                continue
            start = slot * _HASH_BYTES
            self._bytes[start : start + _HASH_BYTES] = block_hash.to_bytes(_HASH_BYTES, sys.byteorder)
            self._mark_numbers[slot] = mark
            self._numbers[slot] = number
            self._used += 1

    def _move_each(self, hashes: Sequence[int], number: int) -> None:
        for block_hash in hashes:
            slot = self._slot(block_hash)
            if slot >= 0:
                self._numbers[slot] = number
            else:
                self._overflow[block_hash] = number

    def _drop_each(self, hashes: Sequence[int]) -> None:
        for block_hash in hashes:
            slot = self._slot(block_hash)
            if slot < 0:
                del self._overflow[block_hash]
                continue
            start = slot * _HASH_BYTES
            self._bytes[start : start + _HASH_BYTES] = _EMPTY
            self._mark_numbers[slot] = 0
            self._used -= 1

    def _slot(self, block_hash: int) -> int:
        """Where the hash lies in the table; -1 if it does not."""
        return self._find(block_hash.to_bytes(_HASH_BYTES, sys.byteorder), block_hash) if block_hash else -1

    def _find(self, content: bytes, block_hash: int) -> int:
        """The first slot of the hash's window with this content; -1 if there is none."""
        start = (block_hash & self._mask) * _HASH_BYTES
        end = start + _WINDOW_BYTES
        at = self._bytes.find(content, start, end)
        while at % _HASH_BYTES and at >= 0:
            at = self._bytes.find(content, at + _HASH_BYTES - at % _HASH_BYTES, end)
        return at // _HASH_BYTES

    def _double(self) -> None:
        """Moves every hash whose home does, by the next bit of it, as far up. O(table), a few ns a slot."""
        homes = self._mask + 1
        last = self._hashes[homes:].view(np.uint64).tolist()
        behind = {block_hash: self._numbers[homes + at] for at, block_hash in enumerate(last) if block_hash}
        self._used -= len(behind)
        behind.update(self._overflow)
        self._overflow = {}
        self._grow()
        for start in range(0, homes, _AT_ONCE):
            lower = slice(start, min(start + _AT_ONCE, homes))
            upper = slice(homes + lower.start, homes + lower.stop)
            rises = (self._hashes[lower] & homes) != 0
            for each in (self._hashes, self._marks):
                np.multiply(each[lower], rises, out=each[upper])
                each[lower] -= each[upper]
        self._hashes[2 * homes :] = 0
        self._marks[2 * homes :] = 0
        self._runs[homes:-WINDOW] = self._runs[:homes]
        for block_hash, number in behind.items():
            self._put_each([block_hash], number)

    def _grow(self) -> None:
        """Makes room for twice as many homes; what is there behind those that were is undefined."""
        homes, slots = self._mask + 1, len(self._hashes)
        memory = self._bytes, self._mark_bytes, self._run_bytes
        self._mark_numbers.release()
        self._numbers.release()
        del self._hashes, self._marks, self._windows, self._runs  # while there are views, nothing grows in place
        for part in memory:
            more = homes * (len(part) // slots)
            part.extend(part[:more])
        self._lie_in(*memory)


def _ints(hashes: Hashes) -> list[int]:
    ints: list[int] = hashes.view(np.uint64).tolist()
    return ints
