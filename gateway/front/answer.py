"""The head of an answer to a plain request, as bytes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web
from msgspec import Struct

from gateway.front.head import HOP_BY_HOP, OURS
from gateway.wire import Answer, Shape

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_NOT_TO_CLIENT = HOP_BY_HOP | {b"x-request-id"}
_BODILESS = frozenset({204, 304})
_FORMS = 256  # kept: as many as there are shapes
_NOTED = frozenset({b"content-type", b"content-length", b"content-encoding", b"date"})


class AnswerHead(Struct, frozen=True):
    """`chunked`: its body is. `telling`: it is a stream of events that can end with one of ours."""

    block: bytes
    chunked: bool
    telling: bool


def relayed(answer: Answer, ours: Mapping[str, str], *, last: bool) -> AnswerHead:
    """A pod's head as the client's, with headers of `ours`; `last`: the connection ends after it. Raises ValueError."""
    if answer.shape is not None:
        return _of_shape(_form(answer.shape), answer.digits, ours, last=last)
    lines: list[bytes] = []
    for key, said in ours.items():
        lines.append(f"{key}: {said}".encode("utf-8", "surrogateescape"))
    noted: dict[bytes, bytes] = {}
    bodiless = answer.status in _BODILESS
    for name, value in answer.headers:
        known = name.lower()
        if known in _NOTED:
            noted[known] = value
            if bodiless and known == b"content-length":
                continue
        elif known in _NOT_TO_CLIENT or known.startswith(OURS):
            continue
        lines.append(b": ".join((name, value.strip(b" \t"))))
    kind = noted.get(b"content-type")
    if kind is None and not bodiless:
        lines.append(b"Content-Type: application/octet-stream")
    chunked = not bodiless and b"content-length" not in noted
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    if b"date" not in noted:
        lines.append(_date())
    is_stream = kind is not None and kind.partition(b";")[0].strip().lower() == b"text/event-stream"
    telling = chunked and is_stream and b"content-encoding" not in noted
    return AnswerHead(_block(answer.status, lines, last=last), chunked, telling)


class _Form(NamedTuple):
    """What of all answers' heads of one shape is the same for clients: what is before ours, and around the length."""

    status: bytes
    before: bytes
    after: bytes
    dated: bool


@lru_cache(_FORMS)
def _form(shape: Shape) -> _Form:
    """O(bytes). A shape has neither line breaks within its lines, nor a coding, nor a status without a body."""
    names = {name.lower() for name, _ in (*shape.before, *shape.after)}
    untyped = b"" if b"content-type" in names else b"\r\nContent-Type: application/octet-stream"
    before = _passed(shape.before) + b"\r\n%b: " % shape.length_name
    return _Form(_status_line(shape.status), before, _passed(shape.after) + untyped, b"date" in names)


def _passed(lines: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Those lines of a pod's that its clients get."""
    known = [(line[0].lower(), line) for line in lines]
    passed = [line for name, line in known if name not in _NOT_TO_CLIENT and not name.startswith(OURS)]
    return b"".join([b"\r\n%b: %b" % line for line in passed])


def _of_shape(form: _Form, digits: bytes, ours: Mapping[str, str], *, last: bool) -> AnswerHead:
    told = "".join([f"\r\n{key}: {said}" for key, said in ours.items()]).encode("utf-8", "surrogateescape")
    if told.count(b"\r") != len(ours) or told.count(b"\n") != len(ours):
        raise ValueError("a header of ours has CR or LF in it")
    status, before, after, dated = form
    date = b"" if dated else b"\r\n" + _date()
    closing = b"\r\nConnection: close" if last else b""
    block = b"%b%b%b%b%b%b%b\r\n\r\n" % (status, told, before, digits, after, date, closing)
    return AnswerHead(block, chunked=False, telling=False)


def own(answer: web.StreamResponse, length: int, *, last: bool) -> bytes:
    """The head of what the gateway itself answers, with a body of `length` bytes. Raises ValueError."""
    lines = [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in answer.headers.items()]
    return _block(answer.status, [*lines, b"Content-Length: %d" % length, _date()], last=last)


def _block(status: int, lines: Iterable[bytes], *, last: bool) -> bytes:
    closing = (b"Connection: close",) if last else ()
    parts = (_status_line(status), *lines, *closing, b"", b"")
    block = b"\r\n".join(parts)
    breaks = len(parts) - 1
    if block.count(b"\r") != breaks or block.count(b"\n") != breaks:
        raise ValueError("a header of an answer has CR or LF in it")
    return block


def _status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status


class _Clock:
    """The header of now, written once a second."""

    second = 0
    line = b""


def _date() -> bytes:
    now = int(time.time())
    if now != _Clock.second:
        _Clock.second = now
        _Clock.line = b"Date: " + formatdate(now, usegmt=True).encode("ascii")
    return _Clock.line
