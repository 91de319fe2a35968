"""The index as a stream of bytes, and back.

A snapshot lets a gateway start warm: from a file, or from a peer that runs. It is a sequence of frames, each a length,
a checksum and a message, so that damage and truncation are seen; the first says format and version, the last how many
publishers there were. A publisher's messages are one opening with all but its runs, then its runs in portions.

The index may change while a snapshot is under way. That does no harm: each publisher is taken down in one go,
together with its position in its event stream, and publishers do not depend on each other. What a publisher announces
after its position is asked for by whoever loads the snapshot; a publisher that is gone by then is left out.

The checksum is against damage, not against malice: load only what a gateway of your own has written.
"""

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from index.holdings import Publisher
from index.radix import RadixIndex
from index.residency import RecordError, Residency, Run

FORMAT: Final = "p2p-gateway-index"
VERSION: Final = 1

_CHUNK_BYTES: Final = 1 << 16
"""About how much one frame holds; writing one takes tens of microseconds."""

_MAX_FRAME_BYTES: Final = 1 << 26
"""No frame is that long, so a longer one is no frame."""

_frame: Final = struct.Struct("<IQ")


class SnapshotError(ValueError):
    """A stream that is no whole snapshot of a known version."""


class _Header(msgspec.Struct, array_like=True, tag="header"):
    format: str
    version: int
    byte_order: str


class _Opening(msgspec.Struct, array_like=True, tag="publisher"):
    residency: Residency
    position: int | None
    runs: int


class _Runs(msgspec.Struct, array_like=True, tag="runs"):
    runs: list[Run]


class _End(msgspec.Struct, array_like=True, tag="end"):
    publishers: int


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Header | _Opening | _Runs | _End)


def dump(index: RadixIndex, positions: Mapping[Publisher, int | None]) -> Iterator[bytes]:
    """The snapshot in chunks of about 64 KiB; the index may change between two of them.

    `positions` says, whenever it is asked, which batch of a publisher's events was applied last. The longest pause
    between two chunks is the time to copy what one publisher holds: about 16 bytes a block.
    """
    yield _framed(_Header(FORMAT, VERSION, sys.byteorder))
    count = 0
    for publisher in index.publishers():
        residency = index.export(publisher)
        if residency is None:
            continue
        count += 1
        runs, residency.runs = residency.runs, []
        yield _framed(_Opening(residency, positions.get(publisher), len(runs)))
        for portion in _portions(runs):
            yield _framed(_Runs(portion))
    yield _framed(_End(count))


def load(chunks: Iterable[bytes], index: RadixIndex) -> dict[Publisher, int | None]:
    """Puts a whole snapshot, in chunks of any size, into `index`; returns the positions.

    Raises SnapshotError; publishers that came before the fault are in the index then.
    """
    loader = Loader(index)
    for chunk in chunks:
        loader.feed(chunk)
    loader.close()
    return loader.positions


class Loader:
    """Takes a snapshot as it arrives. A publisher is in the index, and in `positions`, once all of it has arrived."""

    def __init__(self, index: RadixIndex) -> None:
        self.positions: dict[Publisher, int | None] = {}
        self._index = index
        self._buffer = bytearray()
        self._begun = False
        self._opening: _Opening | None = None
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises SnapshotError. O(data), and the longest step is one publisher's."""
        self._buffer += data
        while len(self._buffer) >= _frame.size:
            length, checksum = _frame.unpack_from(self._buffer)
            if length > _MAX_FRAME_BYTES:
                raise SnapshotError("not a snapshot, or a damaged one")
            end = _frame.size + length
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[_frame.size : end])
            del self._buffer[:end]
            if xxh3_64_intdigest(message) != checksum:
                raise SnapshotError("a damaged snapshot")
            self._take(message)

    def close(self) -> None:
        """Says that nothing follows. Raises SnapshotError if something should have."""
        if not self._ended or self._buffer:
            raise SnapshotError("a snapshot that breaks off" if not self._ended else "something follows the snapshot")

    def _take(self, data: bytes) -> None:
        try:
            message = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise SnapshotError(f"not understood: {error}") from error
        if self._ended or isinstance(message, _Header) is self._begun:
            raise SnapshotError("messages are out of order")
        if isinstance(message, _Header):
            self._begin(message)
        elif isinstance(message, _End):
            self._end(message)
        else:
            self._collect(message)

    def _begin(self, header: _Header) -> None:
        if header.format != FORMAT:
            raise SnapshotError(f"not a snapshot of an index but of {header.format!r}")
        if header.version != VERSION:
            raise SnapshotError(f"snapshot version {header.version} is not known; known is {VERSION}")
        if header.byte_order != sys.byteorder:
            raise SnapshotError(f"a snapshot of a {header.byte_order}-endian machine")
        self._begun = True

    def _collect(self, message: _Opening | _Runs) -> None:
        if isinstance(message, _Opening) is (self._opening is not None):
            raise SnapshotError("messages are out of order")
        if isinstance(message, _Opening):
            self._opening = message
        opening = self._opening
        assert opening is not None  # noqa: S101 - the order was just checked
        if isinstance(message, _Runs):
            opening.residency.runs += message.runs
        if len(opening.residency.runs) < opening.runs:
            return
        try:
            self._index.restore(opening.residency)
        except RecordError as error:
            raise SnapshotError(f"{opening.residency.pod}: {error}") from error
        self.positions[Publisher(opening.residency.pod, opening.residency.rank)] = opening.position
        self._opening = None

    def _end(self, end: _End) -> None:
        if self._opening is not None or end.publishers != len(self.positions):
            raise SnapshotError("a snapshot with publishers missing")
        self._ended = True


def _portions(runs: list[Run]) -> Iterator[list[Run]]:
    portion: list[Run] = []
    size = 0
    for run in runs:
        portion.append(run)
        size += len(run.keys) + len(run.hashes) + len(run.gpu) + len(run.cpu)
        if size >= _CHUNK_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _framed(message: msgspec.Struct) -> bytes:
    data = _encoder.encode(message)
    return _frame.pack(len(data), xxh3_64_intdigest(data)) + data
