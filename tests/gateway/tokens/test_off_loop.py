import asyncio
import threading

import pytest

from gateway.tokens.off_loop import OffLoop
from gateway.tokens.refusal import Refused
from tests.gateway.fleet import until


async def test_short_work_stays_on_the_loop_and_long_work_leaves_it() -> None:
    off_loop = OffLoop(1)
    here = threading.get_ident()
    assert await off_loop.run(100, threading.get_ident) == here
    assert await off_loop.run(100_000, threading.get_ident) != here
    off_loop.close()


async def test_what_work_raises_reaches_the_caller() -> None:
    off_loop = OffLoop(1)
    with pytest.raises(ZeroDivisionError):
        await off_loop.run(100_000, lambda: 1 // 0)
    off_loop.close()


async def test_too_much_waiting_work_is_refused_and_abandoned_work_makes_room() -> None:
    off_loop = OffLoop(1)
    go_on = threading.Event()
    waiting = [asyncio.create_task(off_loop.run(100_000, go_on.wait)) for _ in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="saturated"):
        await off_loop.run(100_000, go_on.wait)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)
    await until(lambda: off_loop._under_way == 1)
    go_on.set()
    assert await waiting[0]
    await until(lambda: off_loop._under_way == 0)
    off_loop.close()
