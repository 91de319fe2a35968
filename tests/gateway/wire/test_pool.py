import asyncio
import gc
import socket
import ssl
from collections.abc import Iterator

import pytest
import trustme

from gateway.errors import PodDisconnected, PodUnreachable
from gateway.upstream import pod_io
from gateway.wire import ConnectError, ConnectTimeout, Disconnected, Origin, Pool, ProtocolError
from gateway.wire.connection import Connection
from tests.gateway.fleet import until
from tests.gateway.wire.peer import CHUNKED, OK, Wire, answers, get, peer, pool, rest


async def once(ours: Pool, origin: Origin) -> bytes:
    async with await get(ours, origin) as answer:
        return await rest(answer)


async def closes_while_idle(wire: Wire) -> None:
    await wire.request()
    await wire.send(OK)


async def races(wire: Wire) -> None:
    """Answer one request; take the next, and close instead of answering."""
    await wire.request()
    await wire.send(OK)
    await wire.request()


async def test_a_connection_is_used_again() -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        assert [await once(ours, there.origin()) for _ in range(3)] == [b"ok"] * 3
        assert (there.connections, ours.open, ours.idle, ours.resent) == (1, 1, 1, 0)


async def test_requests_at_a_time_have_a_connection_each_and_leave_the_last_on_top() -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        assert await asyncio.gather(*(once(ours, there.origin()) for _ in range(5))) == [b"ok"] * 5
        assert (there.connections, ours.open, ours.idle) == (5, 5, 5)
        await once(ours, there.origin())
        assert there.connections == 5


async def test_the_connection_used_last_is_used_next_so_that_the_others_grow_old() -> None:
    now = 0.0
    async with peer(answers(OK)) as there, pool(keepalive=3.0, clock=lambda: now) as ours:
        await asyncio.gather(*(once(ours, there.origin()) for _ in range(5)))
        for now in (1.0, 2.0, 2.9):  # noqa: B007 - the clock reads it
            await once(ours, there.origin())
        now = 3.0
        ours._sweep()
        await until(lambda: ours.open == 1)


async def test_a_connection_whose_end_is_under_way_is_not_used() -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        (connection,) = ours._open
        connection.eof_received()
        assert await once(ours, there.origin()) == b"ok"
        assert (there.connections, ours.resent) == (2, 0)


async def test_a_connection_that_ended_leaves_nothing_to_collect() -> None:
    gc.collect()
    gc.disable()
    try:
        async with peer(answers(OK)) as there, pool() as ours:
            await once(ours, there.origin())
        await asyncio.sleep(0)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Connection)]
    finally:
        gc.enable()


async def test_small_writes_are_not_delayed() -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        (connection,) = ours._open
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_connection_that_the_peer_closed_while_idle_is_not_used() -> None:
    async with peer(closes_while_idle, answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        await until(lambda: ours.open == 0)
        assert await once(ours, there.origin()) == b"ok"
        assert (there.connections, ours.idle, ours.resent) == (2, 1, 0)


async def test_a_connection_on_which_something_comes_while_idle_is_dropped() -> None:
    async def talks(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await asyncio.sleep(0.01)
        await wire.send(OK)
        await wire.left()

    async with peer(talks, answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        await until(lambda: ours.open == 0)
        assert await once(ours, there.origin()) == b"ok"
        assert there.connections == 2


async def test_a_request_that_meets_a_connection_being_closed_is_sent_again() -> None:
    async with peer(races, answers(OK)) as there, pool() as ours:
        assert [await once(ours, there.origin()) for _ in range(2)] == [b"ok"] * 2
        assert (there.connections, ours.resent) == (2, 1)


async def test_it_is_sent_again_once() -> None:
    async def deaf(wire: Wire) -> None:
        await wire.request()

    async with peer(races, deaf, answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        with pytest.raises(Disconnected):
            await once(ours, there.origin())
        assert (there.connections, ours.resent) == (2, 1)


async def test_a_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async def deaf(wire: Wire) -> None:
        await wire.request()

    async with peer(deaf, answers(OK)) as there, pool() as ours:
        with pytest.raises(Disconnected):
            await once(ours, there.origin())
        assert there.connections == 1


async def test_once_a_byte_of_the_answer_has_come_the_request_is_not_sent_again() -> None:
    async def stutters(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await wire.request()
        await wire.send(b"H")

    async with peer(stutters, answers(OK)) as there, pool() as ours:
        await once(ours, there.origin())
        with pytest.raises(Disconnected):
            await once(ours, there.origin())
        assert (there.connections, ours.resent) == (1, 0)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_peer_that_slams_the_door_has_disconnected(how: str) -> None:
    async def slams(wire: Wire) -> None:
        if how == "reset":
            wire.reset()

    async with peer(slams) as there, pool() as ours:
        for _ in range(20):
            with pytest.raises(Disconnected):
                await once(ours, there.origin())
        await until(lambda: ours.open == 0)
        assert there.connections == 20


async def test_an_idle_connection_expires() -> None:
    now = 0.0
    async with peer(answers(OK)) as there, pool(keepalive=3.0, clock=lambda: now) as ours:
        await once(ours, there.origin())
        now = 2.9
        await once(ours, there.origin())
        assert there.connections == 1
        now = 5.9
        await once(ours, there.origin())
        assert there.connections == 2
        await until(lambda: ours.open == 1)


async def test_connections_that_nobody_needs_are_closed_in_time() -> None:
    async with peer(answers(OK)) as there, pool(keepalive=0.05) as ours:
        await asyncio.gather(*(once(ours, there.origin()) for _ in range(3)))
        assert ours.idle == 3
        await until(lambda: ours.open == 0)
        assert await once(ours, there.origin()) == b"ok"
        await until(lambda: ours.open == 0)


async def test_a_younger_connection_outlives_the_sweep_of_an_older_one() -> None:
    now = 0.0
    async with peer(answers(OK)) as there, peer(answers(OK)) as other, pool(keepalive=3.0, clock=lambda: now) as ours:
        await once(ours, there.origin())
        now = 2.0
        await once(ours, other.origin())
        now = 4.0
        ours._sweep()
        assert ours.idle == 1
        await once(ours, other.origin())
        assert (there.connections, other.connections) == (1, 1)


async def test_origins_do_not_share_connections() -> None:
    async with peer(answers(OK)) as one, peer(answers(OK)) as other, pool() as ours:
        for there in (one, other, one, other):
            await once(ours, there.origin())
        assert (one.connections, other.connections, ours.idle) == (1, 1, 2)


async def test_closing_the_pool_ends_all() -> None:
    left = asyncio.Event()

    async def endless(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED + b"2\r\nok\r\n")
        await wire.left()
        left.set()

    async with peer(answers(OK)) as there, peer(endless) as other, pool() as ours:
        await once(ours, there.origin())
        answer = await get(ours, other.origin())
        await answer.read()
        await ours.close()
        assert ours.open == ours.idle == 0
        with pytest.raises(Disconnected, match="given up"):
            await answer.read()
        await until(left.is_set)
        with pytest.raises(ConnectError, match="closed"):
            await get(ours, there.origin())


async def test_a_refused_connection_is_an_error() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with pool() as ours:
            with pytest.raises(ConnectError, match=r"(?i)refused|connect"):
                await get(ours, Origin.of(f"http://127.0.0.1:{bound.getsockname()[1]}"))


async def test_a_name_that_cannot_be_one_is_an_error() -> None:
    async with pool() as ours:
        for name in ("no-such-pod.invalid", "x" * 70 + ".invalid"):
            with pytest.raises(ConnectError):
                await get(ours, Origin.of(f"http://{name}:1"))


@pytest.fixture
def deaf() -> Iterator[Origin]:
    """Where connections are neither taken nor refused: the queue is full."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.socket() as first,
        socket.socket() as other,
    ):
        for waiting in (first, other):
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield Origin.of(f"http://127.0.0.1:{listener.getsockname()[1]}")


async def test_a_connection_that_is_not_made_in_time_is_an_error(deaf: Origin) -> None:
    ours = Pool(connect_timeout=0.05)
    with pytest.raises(ConnectTimeout):
        await get(ours, deaf)
    await ours.close()


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://pod", "pod", 80, b"pod"),
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, b"10.0.0.1:8000"),
        ("http://[::1]:8000", "::1", 8000, b"[::1]:8000"),
    ],
)
def test_an_origin_is_read_from_a_url(url: str, host: str, port: int, authority: bytes) -> None:
    assert Origin.of(url) == Origin(host, port, authority)


def test_https_is_443_and_needs_a_context() -> None:
    context = ssl.create_default_context()
    assert Origin.of("https://pod", context).port == 443
    for url, tls in (("https://pod", None), ("http://pod", context), ("ftp://pod", None), ("http://", None)):
        with pytest.raises(ValueError, match=r"URL|context"):
            Origin.of(url, tls)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


async def test_tls_carries_requests_over_kept_connections(authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    big = b"x" * 1_000_000
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(big), big)
    async with peer(answers(raw), tls=server_tls) as there, pool() as ours:
        for _ in range(2):
            async with await ours.request(there.origin(context), b"POST", b"/", (), big) as answer:
                assert await rest(answer) == big
        assert there.connections == 1


async def test_an_untrusted_certificate_is_a_failed_connection(server_tls: ssl.SSLContext) -> None:
    async with peer(answers(OK), tls=server_tls) as there, pool() as ours:
        with pytest.raises(ConnectError, match=r"(?i)certificate"):
            await get(ours, there.origin(ssl.create_default_context()))
        assert ours.open == 0


async def test_tls_contexts_do_not_share_connections(authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
    async with peer(answers(OK), tls=server_tls) as there, pool() as ours:
        for _ in range(2):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            assert await once(ours, there.origin(context)) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize(
    ("error", "translated"),
    [
        (ConnectError("refused"), PodUnreachable),
        (ConnectTimeout("late"), PodUnreachable),
        (Disconnected("gone"), PodDisconnected),
        (ProtocolError("garbage"), PodDisconnected),
    ],
)
async def test_the_border_translates_each_error(error: Exception, translated: type[Exception]) -> None:
    with pytest.raises(translated, match=f"pod: {error}"):
        async with pod_io("pod", deadline=10):
            raise error
