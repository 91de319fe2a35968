"""Where a publisher's blocks are: from the engine's hash to the number of the run, in about 32 bytes a block.

A dict would cost 90, half of them for the int object that holds the hash. Here the hashes lie packed in rows of 16
slots, the low bits of a hash naming its row: engine hashes are digests, so rows fill evenly. The run's number is in a
second array at the same slot. One hash is looked for as 8 bytes in a row's 128; the many of a usual event are compared
with their rows in a handful of numpy calls, each well under a microsecond.

Where a row is full, a hash goes to a dict, until the table grows. So hashes that are not spread cost what they would
cost in a dict alone. So does 0, which marks an empty slot.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy import count_nonzero
from numpy.typing import NDArray

_ROW_SHIFT: Final = 4
_ROW: Final = 1 << _ROW_SHIFT
_HASH_BYTES: Final = 8
_ROW_BYTES: Final = _ROW * _HASH_BYTES
_RUN_BYTES: Final = 4
_FIRST_ROWS: Final = 4
_FULL: Final = 0.5
"""Of all slots. The table doubles then, so a quarter to a half are used; with 8 hashes a row on average, one row in 250
has more than 16."""

_FEW: Final = 12
"""Fewer hashes are quicker looked at one by one."""

_EMPTY: Final = bytes(_HASH_BYTES)

_Hashes = NDArray[np.uint64]
_Numbers = NDArray[np.int64]


class _Probe(NamedTuple):
    """Hashes that were looked for, as long as the table stays as it is."""

    hashes: Sequence[int]
    packed: _Hashes
    rows: _Numbers
    contents: _Hashes  # hashes * slots of a row


class Locations:
    """A mapping of unsigned 64-bit hashes to run numbers below 2**32."""

    __slots__ = (
        "_bytes",
        "_mask",
        "_numbers",
        "_overflow",
        "_probed",
        "_room",
        "_row_mask",
        "_runs",
        "_slots",
        "_table",
        "_used",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._overflow: dict[int, int] = {}
        self._used = 0
        self._lie_in(bytearray(_FIRST_ROWS * _ROW_BYTES), bytearray(_FIRST_ROWS * _ROW * _RUN_BYTES))

    def _lie_in(self, hashes: bytearray, runs: bytearray) -> None:
        """The table's memory, and the views of it: bytes for one hash, arrays for many."""
        self._bytes = hashes
        self._slots: _Hashes = np.frombuffer(hashes, np.uint64)
        self._table = self._slots.reshape(-1, _ROW)
        self._numbers = memoryview(runs).cast("I")
        self._runs = np.frombuffer(runs, np.uint32)
        self._mask = len(self._table) - 1
        self._row_mask = np.uint64(self._mask)
        self._room = int(_FULL * len(self._slots))
        self._probed: _Probe | None = None

    def __len__(self) -> int:
        return self._used + len(self._overflow)

    def __iter__(self) -> Iterator[int]:
        """Every hash. O(table)."""
        yield from self._slots[self._slots != 0].tolist()
        yield from self._overflow

    def __contains__(self, block_hash: int) -> bool:
        return self._slot(block_hash) >= 0 or block_hash in self._overflow

    def get(self, block_hash: int) -> int | None:
        """The run's number; None if the hash is not there."""
        slot = self._slot(block_hash)
        return self._numbers[slot] if slot >= 0 else self._overflow.get(block_hash)

    def move(self, hashes: Sequence[int], number: int) -> None:
        """Another number for hashes that are there."""
        if len(hashes) < _FEW or 0 in hashes:
            self._move_each(hashes, number)
            return
        slots, elsewhere = self._find_all(hashes)
        self._runs[slots] = number
        self._move_each(elsewhere, number)

    def any_of(self, hashes: Sequence[int]) -> bool:
        """Whether one of the hashes is there."""
        if self._overflow and not self._overflow.keys().isdisjoint(hashes):
            return True
        if len(hashes) < _FEW:
            return any(self._slot(block_hash) >= 0 for block_hash in hashes)
        probe = self._probe(hashes)
        if not count_nonzero(probe.contents == probe.packed[:, None]):
            return False
        self._probed = None  # 0 is found in every empty slot; the next `put` is to look again
        return any(self._slot(block_hash) >= 0 for block_hash in hashes)

    def all_of(self, hashes: Sequence[int]) -> bool:
        """Whether all of the hashes, which differ, are there."""
        if len(hashes) < _FEW or 0 in hashes:
            return all(block_hash in self for block_hash in hashes)
        probe = self._probe(hashes)
        missing = len(hashes) - int(count_nonzero(probe.contents == probe.packed[:, None]))
        return not missing or missing == sum(map(self._overflow.__contains__, hashes))

    def packed(self, hashes: Sequence[int]) -> _Hashes:
        """The hashes side by side, 8 bytes each; at once for those of the last `any_of`."""
        probe = self._probed
        return probe.packed if probe is not None and probe.hashes is hashes else _packed(hashes)

    def put(self, hashes: Sequence[int], number: int) -> None:
        """Adds hashes that differ and are not there. Amortized O(hashes); where the table doubles, O(table)."""
        while self._used + len(hashes) > self._room:
            self._double()
        probe = self._probed
        self._probed = None
        if len(hashes) < _FEW:
            self._put_each(hashes, number)
            return
        if probe is not None and probe.hashes is hashes:
            self._put_all(probe, number)
        elif 0 in hashes:
            self._put_each(hashes, number)
        else:
            self._put_all(self._probe(hashes), number)

    def drop(self, hashes: Sequence[int]) -> None:
        """Removes hashes that are there."""
        self._probed = None
        if len(hashes) < _FEW or 0 in hashes:
            self._drop_each(hashes)
            return
        slots, elsewhere = self._find_all(hashes)
        self._slots[slots] = 0
        self._used -= len(slots)
        self._drop_each(elsewhere)

    def _probe(self, hashes: Sequence[int]) -> _Probe:
        packed = _packed(hashes)
        rows = self._rows(packed)
        self._probed = _Probe(hashes, packed, rows, self._table.take(rows, axis=0))
        return self._probed

    def _put_all(self, probe: _Probe, number: int) -> None:
        _, packed, rows, contents = probe
        slots = (contents == 0).argmax(axis=1)
        rows <<= _ROW_SHIFT
        slots += rows
        if count_nonzero(self._slots.take(slots)):
            fits = self._slots.take(slots) == 0
            self._overflow.update(dict.fromkeys(packed[~fits].tolist(), number))
            packed, slots = packed[fits], slots[fits]
        self._slots[slots] = packed
        self._runs[slots] = number
        left = self._slots.take(slots) != packed  # of several that came for one slot, the last has it
        count = int(count_nonzero(left))
        self._used += len(packed) - count
        if count:
            self._put_each(packed[left].tolist(), number)

    def _find_all(self, hashes: Sequence[int]) -> tuple[_Numbers, list[int]]:
        """The slots of the hashes, none of them 0, that lie in the table; and the others."""
        packed = _packed(hashes)
        rows = self._rows(packed)
        slots = (self._table.take(rows, axis=0) == packed[:, None]).argmax(axis=1)
        rows <<= _ROW_SHIFT
        slots += rows
        elsewhere = self._slots.take(slots) != packed
        if not count_nonzero(elsewhere):
            return slots, []
        return slots[~elsewhere], packed[elsewhere].tolist()

    def _put_each(self, hashes: Sequence[int], number: int) -> None:
        for block_hash in hashes:
            slot = self._find(_EMPTY, block_hash) if block_hash else -1
            if slot < 0:
                self._overflow[block_hash] = number
                continue
            start = slot * _HASH_BYTES
            self._bytes[start : start + _HASH_BYTES] = block_hash.to_bytes(_HASH_BYTES, sys.byteorder)
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
            self._used -= 1

    def _slot(self, block_hash: int) -> int:
        """Where the hash lies in the table; -1 if it does not."""
        return self._find(block_hash.to_bytes(_HASH_BYTES, sys.byteorder), block_hash) if block_hash else -1

    def _find(self, content: bytes, block_hash: int) -> int:
        """The first slot of the hash's row with this content; -1 if there is none."""
        start = (block_hash & self._mask) * _ROW_BYTES
        end = start + _ROW_BYTES
        at = self._bytes.find(content, start, end)
        while at % _HASH_BYTES and at >= 0:
            at = self._bytes.find(content, at + _HASH_BYTES - at % _HASH_BYTES, end)
        return at // _HASH_BYTES

    def _rows(self, packed: _Hashes) -> _Numbers:
        return (packed & self._row_mask).view(np.int64)

    def _double(self) -> None:
        """Splits each row in two, by the next bit of its hashes. O(table), some 10 ns a slot."""
        size = len(self._slots)
        hashes, runs = self._bytes, bytes(self._numbers)
        del self._slots, self._table, self._probed  # views: as long as there are any, the bytes cannot grow in place
        hashes += bytes(len(hashes))
        self._lie_in(hashes, bytearray(runs * 2))
        lower, upper = self._slots[:size], self._slots[size:]
        np.multiply(lower, (lower & np.uint64(size >> _ROW_SHIFT)) != 0, out=upper)
        lower -= upper
        overflow, self._overflow = self._overflow, {}
        for block_hash, number in overflow.items():
            self._put_each([block_hash], number)


def _packed(hashes: Sequence[int]) -> _Hashes:
    return np.frombuffer(array("Q", hashes), np.uint64)
