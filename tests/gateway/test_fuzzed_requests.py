"""Any method, path, query, headers and body: an answer in the shape that the path's clients read, and never a fault."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import pytest
import structlog
import uvloop
from httptools import HttpResponseParser
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.surface import ENDPOINTS
from tests.gateway.fleet import MODEL, Front, connection, fleet

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
EXCHANGE_S = 10.0
START_S = 30.0
OPERATORS = ("/metrics", "/pods", "/explain", "/index/snapshot")
PROBES = ("/health", "/ready")
DOCUMENTED = sorted({endpoint.path for endpoint in ENDPOINTS} | {*OPERATORS, *PROBES, "/v1/files", "/", "/v1", "*"})


class Sent(NamedTuple):
    """A request as it goes over the wire, grammatical but for what is in it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    chunks: list[int] | None  # where a chunked body is cut; None: its length is told

    def wire(self) -> bytes:
        told = [("Host", "gateway"), *self.headers]
        framed, body = "", self.body
        if self.chunks is not None:
            framed = "Transfer-Encoding: chunked\r\n"
            cuts = [0, *sorted(cut for cut in self.chunks if 0 < cut < len(body)), len(body)]
            parts = [body[a:b] for a, b in pairwise(cuts) if a < b]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        elif body or self.method in ("POST", "PUT", "PATCH"):
            framed = f"Content-Length: {len(body)}\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in told)
        return f"{self.method} {self.target} HTTP/1.1\r\n{lines}{framed}\r\n".encode("latin-1") + body


class Got(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Parsed:
    """httptools' callbacks; an answer that only says to go on is passed over."""

    def __init__(self, *, to_head: bool) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.status = 0
        self.whole = False
        self._to_head = to_head
        self._parser = HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.whole = self._to_head and self.status >= 200

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = self.status >= 200


def held(ready: "asyncio.Future[Front]", over: asyncio.Event) -> Coroutine[Any, Any, None]:
    """A gateway in a task of its own, so that it is entered and left in the same."""

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            limits = {"header_timeout": 5.0, "idle_timeout": 5.0, "max_body": 4000}
            front, _ = await stack.enter_async_context(fleet(2, limits=limits))
            ready.set_result(front)
            await over.wait()

    return hold()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Run[Any], Front]]:
    """What runs a coroutine, and the gateway that runs meanwhile."""
    # What is logged before a test begins would go where a test before had it go, which may be closed by now.
    with structlog.testing.capture_logs(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        ready, over = loop.create_future(), asyncio.Event()
        task = loop.create_task(held(ready, over))
        yield runner.run, runner.run(begun(task, ready))
        over.set()
        runner.run(asyncio.wait_for(task, EXCHANGE_S))


async def begun(task: asyncio.Task[None], ready: asyncio.Future[Front]) -> Front:
    """The gateway, once it serves; what kept it from serving, if something did."""
    await asyncio.wait((task, ready), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    assert ready.done(), "the gateway does not serve"
    return ready.result()


async def exchange(front: Front, sent: Sent) -> Got:
    """Send it, and read its answer; a connection that ends without one fails."""
    answer = Parsed(to_head=sent.method == "HEAD")
    async with asyncio.timeout(EXCHANGE_S), connection(front) as (reader, writer):
        writer.write(sent.wire())
        while not answer.whole:
            data = await reader.read(65536)
            assert data, "closed without an answer"
            answer.feed(data)
    return Got(answer.status, answer.headers, answer.body)


# What is sent

_TOKEN = st.text(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~", min_size=1, max_size=12
)
_METHODS = st.one_of(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "QUERY"]),
    st.sampled_from(["POST", "GET"]),
)
_PIECES = st.one_of(
    st.sampled_from(["%2e%2e", "..", ".", "", "%2F", "%00", "%ff", "%", "%zz", "%u0041", ";", "a" * 3000, "{id}", "@"]),
    st.sampled_from(["resp_1", MODEL, "completions", "models", "%E7%8C%AB", "v1", "http:", "[::1]", "a:b", "~", "\\"]),
    st.text("abc%./?;:@&=+$,-_!~*'()\"<>[]{}|^`\\", max_size=8),
)
_EXACT = st.sampled_from(DOCUMENTED).map(lambda path: path.replace("{id}", "resp_1").replace("{model}", MODEL))
_PATHS = st.one_of(
    _EXACT,
    _EXACT,
    st.builds(lambda path, pieces: "/".join((path, *pieces)), _EXACT, st.lists(_PIECES, max_size=4)),
    st.builds(lambda pieces: "/" + "/".join(pieces), st.lists(_PIECES, max_size=5)),
    st.builds(lambda pieces: "/v1/" + "/".join(pieces), st.lists(_PIECES, max_size=5)),
    st.builds(lambda path: f"http://elsewhere{path}", _EXACT),
)
_QUERIES = st.one_of(
    st.just(""), st.just(""), st.text("ab=&%?#/;[]+2f", max_size=20).map("?{}".format), st.just("?" + "q" * 3000)
)
_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=20)
_HEADERS = st.lists(
    st.one_of(
        st.tuples(_TOKEN.map(lambda name: f"x-{name}"), _VALUES),
        st.tuples(
            st.sampled_from(
                ["Content-Type", "Content-Encoding", "x-request-id", "Authorization", "x-api-key", "Origin"]
            ),
            _VALUES,
        ),
        st.sampled_from(
            [
                ("Content-Type", "application/json"),
                ("Content-Type", "multipart/form-data; boundary=X"),
                ("Content-Type", "application/vnd.x+json; charset=utf-7"),
                ("Content-Encoding", "gzip"),
                ("Content-Encoding", "deflate"),
                ("Content-Encoding", "br"),
                ("Accept-Encoding", "gzip, br;q=0"),
                ("Expect", "100-continue"),
                ("Expect", "miracles"),
                ("Upgrade", "websocket"),
                ("Upgrade", "h2c"),
                ("Connection", "upgrade"),
                ("Connection", "close, x-request-id, content-type"),
                ("TE", "trailers"),
                ("Trailer", "x-a"),
                ("x-data-parallel-rank", "7"),
                ("x-gateway-pod", "http://elsewhere"),
                ("x-request-id", "r" * 200),
                ("Range", "bytes=0-1"),
                ("If-None-Match", "*"),
                ("Cookie", "a=b; c"),
                ("Forwarded", "for=_x"),
            ]
        ),
    ),
    max_size=5,
)
_FIELDS = st.sampled_from(
    ["model", "prompt", "messages", "stream", "n", "max_tokens", "input", "tools", "previous_response_id", "store"]
)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([MODEL, "nobody", 1, [1, 2], [{"role": "user", "content": "x"}]]),
)
_JSON = st.dictionaries(
    _FIELDS,
    st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3), st.dictionaries(st.text(max_size=3), _SCALARS, max_size=3)),
    max_size=5,
)
_SENSIBLE = st.sampled_from(
    [
        {"model": MODEL, "prompt": "x", "max_tokens": 1},
        {"model": MODEL, "prompt": [1, 2], "max_tokens": 2, "stream": True},
        {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        {"model": MODEL, "input": "x"},
    ]
)
_BODIES = st.one_of(
    st.just(b""),
    st.builds(lambda fields, more: json.dumps(fields | more).encode(), _SENSIBLE, _JSON),
    _SENSIBLE.map(lambda fields: json.dumps(fields).encode()),
    _JSON.map(lambda fields: json.dumps(fields).encode()),
    st.binary(max_size=60),
    st.just(b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--X--\r\n'),
    st.just(b"x" * 6000),
)
_CHUNKS = st.one_of(st.none(), st.lists(st.integers(1, 40), max_size=4))
requests = st.builds(
    lambda method, path, query, headers, body, chunks: Sent(
        method, "".join(c if "!" <= c <= "~" else "-" for c in path + query), headers, body, chunks
    ),
    _METHODS,
    _PATHS,
    _QUERIES,
    _HEADERS,
    _BODIES,
    _CHUNKS,
)


# What has to come back


def assert_in_shape(sent: Sent, got: Got) -> None:
    """The gateway's own errors are what the path's clients parse."""
    told = json.loads(got.body)
    if set(told) == {"type", "error"}:
        assert "/messages" in sent.target.lower() or "%" in sent.target
        assert told["type"] == "error"
        assert set(told["error"]) == {"type", "message"}
    else:
        assert set(told) == {"error"}
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["code"] != "internal_error"
    assert got.headers["content-type"].startswith("application/json")
    assert got.headers["x-request-id"]


def counted(front: Front) -> float:
    """Requests of which there is a record, and those that were no HTTP."""
    page = front.parts.metrics.registry.restricted_registry(["p2p_gateway_requests_total", "p2p_gateway_refused_total"])
    return sum(
        sample.value
        for family in page.collect()
        for sample in family.samples
        if sample.name == "p2p_gateway_requests_total" or sample.labels["reason"] in ("bad_head", "header_too_large")
    )


@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, *settings().suppress_health_check]
)
@given(sent=requests)
@example(sent=Sent("POST", "/v1/messages", [], b"{", None))
@example(sent=Sent("GET", "/v1/messages/nothing", [], b"", None))
@example(sent=Sent("OPTIONS", "*", [], b"", None))
@example(sent=Sent("GET", "/nowhere", [("Expect", "miracles")], b"", None))
@example(sent=Sent("GET", "/v1/models/nobody", [], b"", None))
@example(sent=Sent("POST", "/v1/completions", [("Expect", "100-continue")], b"x" * 6000, None))
@example(sent=Sent("POST", "/v1/completions", [("Upgrade", "websocket"), ("Connection", "upgrade")], b"{}", None))
def test_any_request_is_answered_in_the_right_shape_and_counted(served: tuple[Run[Any], Front], sent: Sent) -> None:
    run, front = served
    before = counted(front)
    got = run(exchange(front, sent))
    assert got.status != 500, got
    assert got.status < 502, got
    if got.status >= 400 and "x-gateway-pod" not in got.headers and sent.method != "HEAD":
        assert_in_shape(sent, got)
    for_operators = any(path in sent.target for path in (*OPERATORS, *PROBES))  # of these there are no records
    if not for_operators:
        assert counted(front) == before + 1
    assert run(front.get("/health")).status == 200
