"""What requests wait for: a request's first byte, its end, or a poll that shows room."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import control
from tests.gateway.fleet import SLOW, Front, completions, fleet, ids, serving, text_body, until, warm
from tests.gateway.keyring import bearer, write
from tests.gateway.scripted import METRICS, page, says
from tests.gateway.till import FULL, Till, asked, held, till

ON: dict[str, Any] = {"enabled": True}
ON_DEMAND = {"interval": 600.0, "max_age": 600.0}
FRESH_LOAD = {"scorers": [{"type": "token-load"}]}


def metrics(*, waiting: int = 0, kv_usage: float = 0.0) -> bytes:
    text = METRICS.replace(b'waiting{engine="0"} 0.0', b'waiting{engine="0"} %d' % waiting)
    return text.replace(b'perc{engine="0"} 0.0', b'perc{engine="0"} %f' % kv_usage)


async def polled(front: Front, at: Till, **load: Any) -> None:
    """Return when a poll has shown this."""
    pod = front.parts.pods[at.pod.url.removeprefix("http://")]
    at.pod.scripts["/metrics"] = page(metrics(**load))
    before = pod.load_at
    pod.wake.set()
    await until(lambda: pod.load_at > before)


async def test_with_a_bound_on_tokens_the_next_goes_at_the_first_byte() -> None:
    async with fleet(pod={"profile": SLOW}, admission={**ON, "max_in_flight_tokens": 300}) as (front, (pod,)):
        pod.stall()
        sent = text_body(ids(400), stream=True, max_tokens=500)
        first = asyncio.create_task(front.http.post(f"{front.url}/v1/completions", json=sent))
        await until(lambda: len(completions(pod)) == 1)
        second = await held(front, "second")
        pod.resume()
        assert (await second).status == 200  # while the first still streams
        assert (await front.row(pod))["in_flight_requests"] == 1
        (await first).close()
        await front.idle()


BOUNDS = [
    ({"max_waiting": 4}, {"waiting": 4}, {"waiting": 3}),
    ({"max_kv_usage": 0.9}, {"kv_usage": 0.9}, {"kv_usage": 0.895}),
]


@pytest.mark.parametrize(("bound", "full", "room"), BOUNDS, ids=["waiting", "kv"])
async def test_a_poll_lets_as_many_go_as_it_shows_room_for(bound: Any, full: Any, room: Any) -> None:
    async with till() as pod, serving([pod.pod], admission={**ON, **bound}, poll=ON_DEMAND) as front:
        await polled(front, pod, **full)
        tasks = [await held(front, str(n)) for n in range(4)]
        await polled(front, pod, **room)
        await until(lambda: pod.came == ["0"])
        await front.get("/health")
        assert front.parts.admission.waiting() == 3
        pod.serve()  # it is known not to wait any more, without another poll
        await until(lambda: pod.came == ["0", "1"])
        await polled(front, pod, **room)  # this one has seen "1"
        await until(lambda: pod.came == ["0", "1", "2"])
        await polled(front, pod, **full)
        pod.serve()
        pod.serve()
        await asyncio.gather(*tasks[:3])
        assert (pod.came, front.parts.admission.waiting()) == (["0", "1", "2"], 1)
        await polled(front, pod)
        await until(lambda: len(pod.came) == 4)
        pod.serve()
        assert (await tasks[3]).status == 200


async def test_a_load_that_nobody_knows_any_more_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_LOOK_S", 0.02)
    admission = {**ON, "max_waiting": 1, "timeout": 10_000.0}
    async with till() as pod, serving([pod.pod], admission=admission, poll=ON_DEMAND) as front:
        await polled(front, pod, waiting=9)
        task = await held(front, "first")
        later = front.parts.pods.clock() + ON_DEMAND["max_age"] + 1.0
        monkeypatch.setattr(front.parts.pods, "clock", lambda: later)  # nothing happens but that time passes
        await until(lambda: pod.came == ["first"])
        pod.serve()
        assert (await task).status == 200


async def test_where_no_pod_is_ready_any_more_nobody_waits() -> None:
    async with till() as pod, serving([pod.pod], admission={**ON, "max_waiting": 1}, poll={"interval": 0.05}) as front:
        await polled(front, pod, waiting=9)
        task = await held(front, "first")
        pod.pod.scripts["/health"] = says({}, status=500)
        told = await task
        assert (told.status, told.json["error"]["code"]) == (503, "no_pod_ready")
        assert pod.came == []


async def test_nobody_waits_while_a_pod_takes_more() -> None:
    async with (
        till() as one,
        till() as two,
        serving([one.pod, two.pod], admission={**ON, "max_in_flight": 1}, placement=FRESH_LOAD) as front,
    ):
        tasks = [asked(front, str(n)) for n in range(4)]
        await until(lambda: len(one.came) + len(two.came) == 2)
        await until(lambda: front.parts.admission.waiting() == 2)
        for n in range(4):
            served, other = (one, two) if one.under_way else (two, one)
            served.serve()
            await served.until_came(min(4, n + 3) - len(other.came))
        assert {(await task).status for task in tasks} == {200}


@pytest.mark.parametrize("at", FULL)
async def test_what_is_cached_is_not_counted_as_work(at: str, tmp_path: Path) -> None:
    """Both keys send prompts of 1,600 tokens; those of one are in the pod's cache."""
    keys = tmp_path / "keys.yaml"
    write(keys, [{"id": key, "key": f"sk-{key}"} for key in ("cached", "fresh")])
    async with fleet(**FULL[at], auth={"keys": str(keys)}, admin={"port": 0}) as (front, (pod,)):
        await warm(pod, ids(1600))
        await front.settled(pod)
        pod.stall()
        tasks = [asked(front, "first", bearer("sk-fresh"))]
        await until(lambda: len(completions(pod)) == 2)
        for n in range(8):
            tasks.append(await held(front, f"fresh-{n}", bearer("sk-fresh"), prompt=ids(1600, salt=n + 1)))
            tasks.append(await held(front, f"cached-{n}", bearer("sk-cached"), prompt=ids(1600)))
        pod.resume()
        assert {(await task).status for task in tasks} == {200}
        order = [request.headers["x-request-id"].partition("-")[0] for request in completions(pod)[2:]]
        assert Counter(order[:9])["cached"] >= 7
