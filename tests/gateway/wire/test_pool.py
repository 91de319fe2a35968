import asyncio
import gc
import socket
from collections.abc import Iterator

import pytest

from gateway.wire import ConnectError, ConnectTimeout, Disconnected, Origin, Pool
from gateway.wire.connection import Connection
from tests.gateway.fleet import until
from tests.gateway.wire.peer import CHUNKED, OK, Wire, answers, get, once, peer, pool


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
