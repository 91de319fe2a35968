"""The head of a request, as bytes.

Framing (`Host`, `Content-Length`, `Transfer-Encoding`) is written here and nowhere else: two opinions on where a
request ends are how requests are smuggled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_REQUEST = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [!-~\x80-\xff]+")  # RFC 9110, 5.6.2; a target without blanks
_FRAMING = re.compile(rb"\r\n(?:host|content-length|transfer-encoding):", re.IGNORECASE)
# RFC 9110, 8.6: where no content is expected none is announced; some servers take a length of 0 amiss.
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"})

_BEGINNINGS = 256  # kept, of some hundred bytes each: few targets make nearly all requests


def request_head(
    method: bytes, target: bytes, authority: bytes, headers: Sequence[tuple[bytes, bytes]], length: int | None
) -> bytes:
    """A request line and header block, ended by an empty line. O(bytes).

    `length` is the body's in bytes, None where it is sent chunked. Raises ValueError for a method or target that is
    none, for CR, LF or NUL in a name or value, and for `headers` that frame the request.
    """
    block = b"\r\n".join([b"", *map(b": ".join, headers)])
    breaks = len(headers)
    if block.count(b"\r") != breaks or block.count(b"\n") != breaks or b"\0" in block:
        raise ValueError("a header name or value has CR, LF or NUL in it")
    if _FRAMING.search(block):
        raise ValueError("headers may not frame the request")
    if length is None:
        framing = b"\r\nTransfer-Encoding: chunked"
    elif length or method not in _BODILESS:
        framing = b"\r\nContent-Length: %d" % length
    else:
        framing = b""
    return b"%b%b%b\r\n\r\n" % (_beginning(method, target, authority), block, framing)


@lru_cache(_BEGINNINGS)
def _beginning(method: bytes, target: bytes, authority: bytes) -> bytes:
    """Request line and Host. Raises ValueError."""
    request = b"%b %b" % (method, target)
    if not _REQUEST.fullmatch(request):
        raise ValueError(f"not a request: {request!r}")
    return b"%b HTTP/1.1\r\nHost: %b" % (request, authority)
