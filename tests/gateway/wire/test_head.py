from typing import Any

import pytest

from gateway.wire.head import request_head

HEADERS = [(b"X-Twice", b"1"), (b"x-twice", b"2"), (b"Accept", b"*/*")]


def head(**changed: Any) -> bytes:
    given: dict[str, Any] = {
        "method": b"POST", "target": b"/v1/x?y=%20z", "authority": b"pod:8000", "headers": HEADERS, "length": 3,
    }  # fmt: skip
    return request_head(**{**given, **changed})


def test_headers_keep_their_order_and_spelling() -> None:
    assert head() == (
        b"POST /v1/x?y=%20z HTTP/1.1\r\nHost: pod:8000\r\nX-Twice: 1\r\nx-twice: 2\r\nAccept: */*\r\n"
        b"Content-Length: 3\r\n\r\n"
    )


def test_a_body_of_unknown_length_is_chunked() -> None:
    assert head(headers=(), length=None) == (
        b"POST /v1/x?y=%20z HTTP/1.1\r\nHost: pod:8000\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


@pytest.mark.parametrize(("method", "told"), [(b"POST", True), (b"PUT", True), (b"GET", False), (b"HEAD", False)])
def test_an_empty_body_is_announced_where_one_is_expected(method: bytes, told: bool) -> None:
    assert (b"\r\nContent-Length: 0\r\n" in head(method=method, length=0)) is told


@pytest.mark.parametrize(
    "bad", [b"\r", b"\n", b"\0", b"\r\n", b"\r\nX-Injected: 1", b"\n\n", b"\r\n\r\nGET / HTTP/1.1"]
)
@pytest.mark.parametrize("where", ["name", "value"])
def test_line_breaks_and_nul_are_refused(bad: bytes, where: str) -> None:
    pair = (b"x" + bad + b"y", b"v") if where == "name" else (b"x", b"v" + bad + b"w")
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        head(headers=[(b"a", b"b"), pair])


@pytest.mark.parametrize("name", [b"Host", b"content-length", b"Transfer-Encoding"])
def test_headers_that_frame_the_request_are_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        head(headers=[(b"a", b"b"), (name, b"1")])


def test_names_that_only_resemble_framing_pass() -> None:
    assert b"\r\nX-Host: a\r\nContent-Length-Hint: 3\r\n" in head(
        headers=[(b"X-Host", b"a"), (b"Content-Length-Hint", b"3")]
    )


@pytest.mark.parametrize(
    ("method", "target"),
    [(b"", b"/"), (b"GET /", b"/"), (b"GET\r\n", b"/"), (b"GET", b""), (b"GET", b"/ HTTP/1.1"), (b"GET", b"/\r\nA: b")],
)
def test_a_request_line_that_is_none_is_refused(method: bytes, target: bytes) -> None:
    with pytest.raises(ValueError, match="not a request"):
        head(method=method, target=target)
