"""The head of a plain request, byte for byte.

Plain is what can be read in one way only. One pattern matches a header line in the form in which clients write it:
a token, a colon, one blank, a value without control characters that neither begins nor ends with a blank. The block is
plain if such lines tile it, from the first byte to the last: so there is no bare CR or LF, no folded line, no blank
before a colon and no line that is something else. On top of this the head has one Host, at most one length, in digits,
and none of the headers that change where a message ends or what becomes of the connection.

What is not plain may still be right. Somebody else, who knows all of HTTP, has to decide that, with the same bytes.

The requests of a connection have the same head but for the length of what follows. So the line of the length is cut
out first, and the rest is parsed once as long as it stays the same. Cutting does not hide anything: the line is a whole
one, and where lines tile what is left of a block, they tile what is before and behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,15})(?=\r\n|\Z)", re.IGNORECASE)
_LINE = re.compile(rb"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+): (?![ \t])([\t -~\x80-\xff]+)(?<![ \t])")
_FRAME_BYTES = 4  # of a line: CR, LF, colon, blank
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]+")
# What changes where a message ends, what its body is, what is expected before it, or what the connection becomes.
_UNUSUAL = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"trailer", b"expect", b"upgrade"})
_KEPT = ((b"keep-alive",), (b"Keep-Alive",))


class Head:
    """Header lines without that of the length; `names` are theirs, in lower case."""

    __slots__ = ("given_id", "headers", "names", "passed_on")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], names: Sequence[bytes]) -> None:
        self.headers = headers
        self.names = names
        found = self.values(b"x-request-id")
        self.given_id = found[0].decode("utf-8", "surrogateescape") if found else ""
        self.passed_on: list[tuple[bytes, bytes]] | None = None  # to pods, once somebody has sorted that out

    def values(self, name: bytes) -> tuple[bytes, ...]:
        """All under a name, given in lower case."""
        if name not in self.names:
            return ()
        return tuple(value for known, (_, value) in zip(self.names, self.headers, strict=True) if known == name)


def cut(block: bytes) -> tuple[bytes, int | None]:
    """A block of header lines without the first line of a length, and this length; None where there is none."""
    found = _LENGTH.search(block)
    if found is None:
        return block, None
    return block[: found.start()] + block[found.end() :], int(found[1])


def plain(rest: bytes) -> Head | None:
    """The header lines of a request, each with the CRLF before it, but for that of the length.

    None where they are not plain. O(bytes).
    """
    headers = _LINE.findall(rest)
    if sum(map(len, map(b"".join, headers))) + _FRAME_BYTES * len(headers) != len(rest):
        return None
    names = [name.lower() for name, _ in headers]
    if not _UNUSUAL.isdisjoint(names) or names.count(b"host") != 1:
        return None
    head = Head(headers, names)
    kept = b"connection" not in names or head.values(b"connection") in _KEPT
    return head if kept and _HOST.fullmatch(head.values(b"host")[0]) else None
