"""What happens between a request's turn and its own step, when something else comes first.

Which of the loop's turns that is depends on how many the sockets take. So each test tries a number of them.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from gateway.admission import control
from tests.gateway.fleet import Answer, Front, connection, posted, serving, text_body, until
from tests.gateway.scripted import models, says
from tests.gateway.test_lifecycle import stoppable
from tests.gateway.till import FULL, ONE, Till, held, one_at_a_time, placed, till

ROUNDS = [(f"{again}/{turns}", turns) for again in range(3) for turns in range(-3, 8)]
NAMES = ("first", "second", "third")
TOKEN_LOAD = {"scorers": [{"type": "token-load"}]}
ADAPTERS = says(models({"id": "demo-model"}, {"id": "other", "parent": "demo-model", "root": "/other"}))


async def apart(turns: int, first: Callable[[], None], second: Callable[[], None]) -> None:
    """Do the second so many turns of the loop after the first, or before it."""
    if turns < 0:
        turns, first, second = -turns, second, first
    first()
    for _ in range(turns):
        await asyncio.sleep(0)
    second()


async def served(pods: Iterable[Till], *tasks: asyncio.Task[Any]) -> None:
    """Answer whatever comes, until all these have ended."""

    def over() -> bool:
        for pod in pods:
            if pod.under_way:
                pod.serve()
        return all(task.done() for task in tasks)

    await until(over)


def statuses(tasks: Iterable[asyncio.Task[Answer]]) -> list[int]:
    return [task.result().status for task in tasks]


@pytest.mark.parametrize("at", FULL)
async def test_who_finds_its_room_taken_by_another_model_waits_on_and_is_next(at: str) -> None:
    sent = posted(text_body([1], model="other")).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    async with till(models=ADAPTERS) as pod, serving([pod.pod], **FULL[at]) as front:
        for n, turns in ROUNDS:
            tasks = [await placed(front, pod, f"{n} first")]
            tasks += [await held(front, f"{n} second"), await held(front, f"{n} third")]
            async with connection(front) as (reader, writer):
                other = asyncio.create_task(reader.read())
                await apart(turns, pod.serve, partial(writer.write, sent))
                await served([pod], *tasks, other)
            assert statuses(tasks) == [200, 200, 200]
            assert other.result().startswith(b"HTTP/1.1 200 ")
            assert pod.most == 1
            assert [name for name in pod.came if name.startswith(f"{n} ")] == [f"{n} {each}" for each in NAMES]
            await front.idle()


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_who_finds_its_room_taken_by_another_attempt_waits_on() -> None:
    sections: dict[str, Any] = {
        "admission": ONE,
        "placement": TOKEN_LOAD,
        "limits": {"retry_budget": 1.0},
        "breaker": {"failures": 1000},
    }
    async with till() as failing, till() as pod, serving([failing.pod, pod.pod], **sections) as front:
        for n, turns in ROUNDS:
            tasks = [await placed(front, failing, f"{n} first"), await placed(front, pod, f"{n} second")]
            tasks.append(await held(front, f"{n} third"))
            await apart(turns, pod.serve, partial(failing.serve, 503))
            await served([failing, pod], *tasks)
            assert statuses(tasks) == [200, 200, 200]
            waited = failing if tasks[2].result().pod == failing.pod.url else pod
            assert waited.found[f"{n} third"] == 0
            await unsuspected(front, failing)
        assert await front.metric("retries_total") == len(ROUNDS)


async def unsuspected(front: Front, at: Till) -> None:
    """Return when nothing is under way, and a poll has found the pod well again."""
    pod = front.parts.pods[at.pod.url.removeprefix("http://")]
    await until(lambda: not pod.suspect)
    await front.idle()


async def test_a_client_that_leaves_when_its_turn_comes_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_LOOK_S", 600.0)  # that nothing else may find out
    async with one_at_a_time({"poll": {"interval": 600.0}}) as (front, pod):
        for n, turns in ROUNDS:
            first = await placed(front, pod, f"{n} first")
            async with connection(front) as (_, leaving):
                leaving.write(posted(text_body([1])))
                await until(lambda: front.parts.admission.waiting() == 1)
                second = await held(front, f"{n} second")
                await apart(turns, pod.serve, leaving.close)
            await served([pod], first, second)
            assert statuses([first, second]) == [200, 200]
            await front.idle()
        assert front.parts.admission.waiting() == 0


@pytest.mark.parametrize("turns", range(12))
async def test_a_shutdown_when_its_turn_comes_leaves_nobody_waiting(turns: int) -> None:
    async with till() as pod, stoppable(pod.pod, admission=ONE) as gateway:
        tasks = [await placed(gateway.front, pod, "first")]
        tasks += [await held(gateway.front, "second"), await held(gateway.front, "third")]
        pod.serve()
        for _ in range(turns):
            await asyncio.sleep(0)
        stopping = await gateway.stop()
        await served([pod], *tasks)
        first, *others = statuses(tasks)
        assert first == 200
        assert others in ([200, 200], [200, 503], [503, 503])
        assert pod.came == list(NAMES[: 1 + others.count(200)])
        await stopping
