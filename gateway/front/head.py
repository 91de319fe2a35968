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
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]{1,15})(?=\r\n|\Z)", re.IGNORECASE)
_LINE = re.compile(rb"\r\n([!#$%&'*+\-.^_`|~0-9A-Za-z]+): (?![ \t])([\t -~\x80-\xff]+)(?<![ \t])")
_FRAME_BYTES = 4  # of a line: CR, LF, colon, blank
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]+")
# What changes where a message ends, what its body is, what is expected before it, or what the connection becomes.
_UNUSUAL = frozenset({b"content-length", b"transfer-encoding", b"content-encoding", b"trailer", b"expect", b"upgrade"})
_KEPT = frozenset({b"keep-alive", b"Keep-Alive"})

# RFC 9110, 7.6.1: meant for one connection only; and what each side's HTTP stack writes itself.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
OURS = b"x-gateway-"
# The length of a body is written anew: it may not be what it was.
NOT_TO_POD = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
UNPACKED_NOT_TO_POD = NOT_TO_POD | {b"content-encoding"}
# By these a client could choose a rank or a source, here or at a pod.
_STEERING = (OURS, b"x-data-parallel-", b"x-kv-", b"x-prefiller-", b"x-p2p-")


class Head(NamedTuple):
    """Header lines but for the length, those of them that a pod gets, the client's `x-request-id` and `traceparent`.

    Of these two, where there are none, nothing.
    """

    headers: list[tuple[bytes, bytes]]
    passed_on: list[tuple[bytes, bytes]]
    given_id: str
    traceparent: bytes


def cut(block: bytes) -> tuple[bytes, int | None]:
    """A block of header lines without the first line of a length, and this length; None where there is none."""
    found = _LENGTH.search(block)
    if found is None:
        return block, None
    return block[: found.start()] + block[found.end() :], int(found[1])


def digits_at(block: bytes) -> tuple[int, int]:
    """Where those digits begin and end that `cut` would take for the length of a block that has one."""
    found = _LENGTH.search(block)
    assert found is not None, "what has a length has digits"  # noqa: S101 - for mypy
    return found.span(1)


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
    values = dict(zip(reversed(names), (value for _, value in reversed(headers)), strict=True))  # the first of each
    if names.count(b"connection") > 1 or values.get(b"connection", b"keep-alive") not in _KEPT:
        return None
    if not _HOST.fullmatch(values[b"host"]):
        return None
    given_id = values.get(b"x-request-id", b"").decode("utf-8", "surrogateescape")
    traceparent = values.get(b"traceparent", b"")
    return Head(headers, passed_on(zip(names, headers, strict=True)), given_id, traceparent)


def passed_on(
    headers: Iterable[tuple[bytes, tuple[bytes, bytes]]], dropped: AbstractSet[bytes] = NOT_TO_POD
) -> list[tuple[bytes, bytes]]:
    """Of headers, given with their names in lower case, those that a pod gets."""
    return [header for name, header in headers if name not in dropped and not name.startswith(_STEERING)]
