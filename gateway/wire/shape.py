"""Heads of answers that came in one piece, have a length, and can be read in one way only.

Nearly all that is not a stream comes so: a head with a length, and as much of a body behind it, at once or right after.
A peer's heads are the same from answer to answer but for that length, and once a second for a date. So what is before
and behind the digits is parsed when it comes again, and as long as it stays the same, byte for byte, a head is found by
comparing it. Where every head is another one, as with an id of the peer's in it, it is soon hardly looked at any more.

Plain are lines as `front.head` has them for requests: a token, a colon, one blank, a value without control characters
that neither begins nor ends with a blank; one length, in digits; and nothing else that says where the body ends or what
becomes of the connection. What is not plain may still be right, and the parser reads it, from the same first byte.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_MOST_BYTES = 4096  # of a head, beside the digits; longer ones are not kept
MOST_DIGITS = 15  # of a length
_MOST_SKIPPED = 63  # answers, between two that are looked at
_KEPT = 256  # shapes: of some pods' heads, with the dates of some seconds
_LENGTH = re.compile(rb"\r\ncontent-length: (?=[0-9]{1,15}\r\n)", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ([\t -~\x80-\xff]*)")
_LINE = re.compile(rb"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+): (?![ \t])([\t -~\x80-\xff]+)(?<![ \t])")
_FRAME_BYTES = 4  # of a line: CR, LF, colon, blank
_BODILESS = frozenset({204, 304})
# What also says where a body ends, or what becomes of the connection; the second is what parsers take for the first.
_UNUSUAL = frozenset(
    {b"content-length", b"transfer-encoding", b"connection", b"proxy-connection", b"keep-alive", b"upgrade", b"trailer"}
)
_HEAD_END = b"\r\n\r\n"


class Around:
    """What of a first line and a head is around the digits of the length: `start` before, `rest` behind, to the end."""

    __slots__ = ("_at", "_furthest", "rest", "start")

    def __init__(self, start: bytes, rest: bytes) -> None:
        self.start = start
        self.rest = rest
        self._at = len(start)
        self._furthest = len(start) + MOST_DIGITS + len(rest)

    def cut(self, data: bytes) -> tuple[bytes, int] | None:
        """The digits, and where a body begins, of `data` that begins with this and any digits; else None. O(head)."""
        if not data.startswith(self.start):
            return None
        rest, at = self.rest, self._at
        end = data.find(rest, at, self._furthest)
        digits = data[at:end]
        return (digits, end + len(rest)) if end >= 0 and digits.isdigit() else None


class Shape(Around):
    """An answer's head but for the digits of its length.

    `before` and `after` are the header lines on either side of the one with the length, whose name is `length_name`.
    Alike are only those that are the same.
    """

    __slots__ = ("after", "before", "length_name", "reason", "status")

    def __init__(self, status: int, reason: bytes, start: bytes, rest: bytes, lines: _Lines) -> None:
        super().__init__(start, rest)
        self.status = status
        self.reason = reason
        self.before, self.length_name, self.after = lines

    def headers(self, digits: bytes) -> list[tuple[bytes, bytes]]:
        """The header lines, in their order, as the peer spelled them."""
        return [*self.before, (self.length_name, digits), *self.after]


class _Lines(NamedTuple):
    before: list[tuple[bytes, bytes]]
    length_name: bytes
    after: list[tuple[bytes, bytes]]


class Seen:
    """What the heads of a connection's answers were like, to find those that come again."""

    __slots__ = ("_halves", "_missed", "_skipped")

    def __init__(self) -> None:
        self._halves: tuple[bytes, bytes] | None = None
        self._missed = 0  # looked at in vain, as a power of two less one
        self._skipped = 0  # that are not to be looked at

    def shape_of(self, data: bytes) -> Shape | None:
        """The shape of the answer that `data` begins with, where the last one that was looked at had it as well."""
        if self._skipped:
            self._skipped -= 1
            return None
        halves = halves_of(data)
        if halves is not None and halves == self._halves and (shape := shape_of(*halves)) is not None:
            return shape
        self._halves = halves or self._halves
        self.missed()
        return None

    def found(self) -> None:
        """A shape was of use: from now on every answer of another one is looked at."""
        self._missed = self._skipped = 0

    def missed(self) -> None:
        """Looking was in vain."""
        self._skipped = self._missed
        self._missed = min(2 * self._missed + 1, _MOST_SKIPPED)


def halves_of(data: bytes) -> tuple[bytes, bytes] | None:
    """What is around the digits in the head with which `data` begins; None where it is not all there, or has none."""
    end = data.find(_HEAD_END, 0, _MOST_BYTES)
    found = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    if found is None:
        return None
    begin = found.end()
    return data[:begin], data[data.find(b"\r", begin) : end + len(_HEAD_END)]


@lru_cache(_KEPT)
def shape_of(start: bytes, rest: bytes) -> Shape | None:
    """The shape with these bytes before and behind the digits; None where the head is not plain. O(bytes)."""
    at = start.find(b"\r\n")
    status = _STATUS.fullmatch(start, 0, at)
    length_at = start.rfind(b"\r\n")
    before, after = _lines(start[at:length_at]), _lines(rest[: -len(_HEAD_END)])
    if status is None or int(status[1]) in _BODILESS or before is None or after is None:
        return None
    return Shape(int(status[1]), status[2], start, rest, _Lines(before, start[length_at + 2 : -2], after))


def _lines(block: bytes) -> list[tuple[bytes, bytes]] | None:
    """The header lines of which a block consists, each with the CRLF before it; None where they are not plain."""
    lines: list[tuple[bytes, bytes]] = _LINE.findall(block)
    if sum(map(len, map(b"".join, lines))) + _FRAME_BYTES * len(lines) != len(block):
        return None
    return lines if _UNUSUAL.isdisjoint(name.lower() for name, _ in lines) else None
