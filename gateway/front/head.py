"""The head of a plain request, byte for byte.

Plain is what can be read in one way only. One pattern matches a header line in the form in which clients write it:
a token, a colon, one blank, a value without control characters that neither begins nor ends with a blank. The block is
plain if such lines tile it, from the first byte to the last: so there is no bare CR or LF, no folded line, no blank
before a colon and no line that is something else. On top of this the head has one Host and one length in digits, and
none of the headers that change where a message ends or what becomes of the connection.

What is not plain may still be right. Somebody else, who knows all of HTTP, has to decide that, with the same bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(rb"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+): (?![ \t])([\t -~\x80-\xff]+)(?<![ \t])")
_FRAME_BYTES = 4  # of a line: CR, LF, colon, blank
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]+")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# What changes where a message ends, what its body is, what is expected before it, or what the connection becomes.
_UNUSUAL = frozenset({b"transfer-encoding", b"content-encoding", b"trailer", b"expect", b"upgrade"})
_KEPT = frozenset({b"keep-alive", b"Keep-Alive"})


class Head(NamedTuple):
    """`names` are those of `headers`, in lower case. `length` is the body's, None where none is announced."""

    headers: list[tuple[bytes, bytes]]
    names: list[bytes]
    length: int | None

    def value(self, name: bytes) -> bytes | None:
        """The first value under a name, given in lower case."""
        return self.headers[self.names.index(name)][1] if name in self.names else None


def plain(block: bytes) -> Head | None:
    """The header lines of a request, each with the CRLF before it, without the empty line; None: not plain. O(bytes)."""
    headers = _LINE.findall(block)
    if sum(map(len, map(b"".join, headers))) + _FRAME_BYTES * len(headers) != len(block):
        return None
    names = [name.lower() for name, _ in headers]
    if not _UNUSUAL.isdisjoint(names) or names.count(b"host") != 1:
        return None
    head = Head(headers, names, None)
    if not _HOST.fullmatch(head.value(b"host") or b""):
        return None
    if b"connection" in names and (names.count(b"connection") > 1 or head.value(b"connection") not in _KEPT):
        return None
    if b"content-length" not in names:
        return head
    length = head.value(b"content-length") or b""
    if names.count(b"content-length") > 1 or not _LENGTH.fullmatch(length):
        return None
    return Head(headers, names, int(length))
