import socket
from collections.abc import Iterator

import aiohttp
import pytest

from gateway.errors import PodRejected, PodUnavailable, PodUnreachable
from gateway.upstream import PodApi, decoded
from tests.gateway.fleet import client
from tests.gateway.scripted import says, scripted


@pytest.fixture
def deaf() -> Iterator[str]:
    """A URL where connections are neither taken nor refused, as at a machine that is gone: its queue is full."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.socket() as first,
        socket.socket() as other,
    ):
        for waiting in (first, other):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_pod_that_takes_no_connection_in_time_is_unreachable(deaf: str) -> None:
    timeout = aiohttp.ClientTimeout(sock_connect=0.1)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        with pytest.raises(PodUnreachable, match="no connection within the deadline") as caught:
            await PodApi(http).get(deaf, "/health", timeout=10)
    assert caught.value.retryable


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async with client() as http:
        with pytest.raises(PodUnreachable):
            await PodApi(http).get("http://no-such-pod.invalid:1", "/health", timeout=10)


async def test_what_is_posted_is_json_and_a_200_is_its_body() -> None:
    async with scripted(tokenize=says({"a": 1})) as pod, client() as http:
        assert await PodApi(http).post(pod.url, "/tokenize", b"[]", timeout=10) == b'{"a": 1}'
    assert pod.requests[-1].headers["content-type"] == "application/json"
    assert pod.requests[-1].body == b"[]"


@pytest.mark.parametrize(
    ("status", "error"), [(500, PodUnavailable), (503, PodUnavailable), (404, PodRejected), (302, PodRejected)]
)
async def test_any_other_status_is_an_error(status: int, error: type[Exception]) -> None:
    async with scripted(tokenize=says({}, status)) as pod, client() as http:
        with pytest.raises(error, match=f"answered {status}"):
            await PodApi(http).post(pod.url, "/tokenize", b"{}", timeout=10)


@pytest.mark.parametrize("body", [b"", b"{", b'"text"', b"\xff"])
def test_an_answer_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(PodRejected, match="somewhere: unexpected answer"):
        decoded(body, dict[str, int], "somewhere")
