"""Streams that go wrong in ways that only a publisher under the test's hand can show."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import gateway.subscriber
from tests.gateway.announcer import Announcer, announcing, batch, stored
from tests.gateway.fleet import BLOCK, Front, ids, serving, until
from tests.gateway.scripted import ScriptedPod, says, scripted

FIRST = batch(stored(1, tokens=ids(BLOCK)))
SECOND = batch(stored(2, parent=1, tokens=ids(100)[BLOCK : 2 * BLOCK]))
THIRD = batch(stored(3, parent=2, tokens=ids(100)[2 * BLOCK : 3 * BLOCK]))
FOURTH = batch(stored(4, parent=3, tokens=ids(100)[3 * BLOCK : 4 * BLOCK]))


@pytest.fixture(autouse=True)
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the tail that follows a connection does not come while a test runs."""
    monkeypatch.setattr(gateway.subscriber, "_TAIL_CHECK_S", 1000.0)


@pytest.fixture
def _soon(_late: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the tail comes at once."""
    monkeypatch.setattr(gateway.subscriber, "_TAIL_CHECK_S", 0.05)


@asynccontextmanager
async def following(*, replay: bool = True) -> AsyncIterator[tuple[Front, ScriptedPod, Announcer]]:
    """A gateway whose subscription to one announcer is in place."""
    async with announcing() as announcer:
        told = {"0": {"endpoint": announcer.events, "replay_endpoint": announcer.replays if replay else None}}
        async with scripted(sources=says(told)) as pod, serving([pod]) as front:
            await announcer.subscribed()
            yield front, pod, announcer


async def holds(front: Front, tokens: int) -> None:
    """Return when the pod is known to hold so much of the prompt."""

    async def known() -> bool:
        (candidate,) = (await front.explain(ids(100)))["candidates"]
        return bool(candidate["cached_tokens"]["any"] == tokens)

    await until(known)


async def row(front: Front, pod: ScriptedPod, **expected: Any) -> None:
    async def said() -> bool:
        found = await front.row(pod)
        return all(found[field] == value for field, value in expected.items())

    await until(said)


async def test_without_a_replay_port_a_stream_seen_from_its_start_is_certain() -> None:
    async with following(replay=False) as (front, pod, announcer):
        assert (await front.row(pod))["certain"] is False
        await announcer.send(0, FIRST)
        await announcer.send(1, SECOND)
        await row(front, pod, certain=True, last_seq=1, gaps=0)
        await holds(front, 2 * BLOCK)


async def test_what_a_replay_found_is_told_without_waiting_for_the_next_frame() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)


async def test_numbers_that_start_again_are_a_new_engine() -> None:
    async with following(replay=False) as (front, pod, announcer):
        await announcer.send(0, FIRST)
        await announcer.send(1, SECOND)
        await holds(front, 2 * BLOCK)
        await announcer.send(0, FIRST)
        await row(front, pod, restarts=1, last_seq=0, certain=True, cached_blocks={"gpu": 1, "cpu": 0})
        await holds(front, BLOCK)
        assert await front.metric("kv_restarts_total") == 1


async def test_without_replay_the_first_event_heard_of_a_new_engine_ends_all_claims_of_the_old() -> None:
    async with following(replay=False) as (front, pod, announcer):
        for number, payload in enumerate((FIRST, SECOND, THIRD)):
            await announcer.send(number, payload)
        await holds(front, 3 * BLOCK)
        # Its first two batches were missed.
        await announcer.send(2, batch(stored(9, tokens=ids(BLOCK, salt=1))))
        await row(front, pod, restarts=1, last_seq=2, gaps=1, certain=False, cached_blocks={"gpu": 1, "cpu": 0})
        await holds(front, 0)


async def test_a_new_engine_whose_first_batches_were_missed_is_replayed_from_its_start() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST), (1, SECOND), (2, THIRD))
        await row(front, pod, last_seq=2, certain=True)
        await announcer.send(3, FOURTH)
        await holds(front, 4 * BLOCK)
        await announcer.send(1, SECOND)
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST), (1, SECOND))
        await row(front, pod, restarts=1, last_seq=1, certain=True, cached_blocks={"gpu": 2, "cpu": 0})


async def test_a_frame_that_came_live_and_by_replay_is_applied_once() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.send(0, FIRST)
        await announcer.send(1, SECOND)
        await announcer.answer((0, FIRST), (1, SECOND))
        await announcer.send(2, THIRD)
        await row(front, pod, last_seq=2, restarts=0, certain=True, cached_blocks={"gpu": 3, "cpu": 0})
        front.parts.index.check_invariants()


async def test_frames_that_wait_while_a_replay_runs_follow_it() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.send(2, THIRD)
        await announcer.send(3, FOURTH)
        await announcer.answer((0, FIRST), (1, SECOND))
        await row(front, pod, last_seq=3, certain=True)
        await holds(front, 4 * BLOCK)


async def test_a_hole_in_a_replay_is_asked_for_again() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST), (2, THIRD))
        assert await announcer.asked() == 1
        await announcer.answer((1, SECOND), (2, THIRD))
        await row(front, pod, last_seq=2, certain=True)
        assert await front.metric("kv_replays_total", result="hole") == 1
        assert await front.metric("kv_replays_total", result="complete") == 1


async def test_a_frame_that_was_kept_survives_a_hole_in_the_replay_before_it() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        await announcer.send(3, FOURTH)
        assert await announcer.asked() == 1
        await announcer.answer((1, SECOND), (3, FOURTH))
        assert await announcer.asked() == 2
        await announcer.answer((2, THIRD))
        await row(front, pod, last_seq=3, certain=True)
        await holds(front, 4 * BLOCK)


async def test_an_engine_that_restarts_while_its_predecessors_events_are_replayed_starts_from_nothing() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST), (1, SECOND))
        await row(front, pod, last_seq=1, certain=True)
        await announcer.send(2, THIRD)
        await holds(front, 3 * BLOCK)
        await announcer.send(7, FOURTH)
        assert await announcer.asked() == 3
        await announcer.send(0, FIRST)
        await announcer.send(1, SECOND)
        await front.get("/health")
        await announcer.answer()
        await row(front, pod, restarts=1, last_seq=1, certain=True, cached_blocks={"gpu": 2, "cpu": 0})
        # Nothing of the old engine is left to be mistaken for the new one's.
        await announcer.send(3, FOURTH)
        assert await announcer.asked() == 2
        await announcer.answer((2, THIRD))
        await row(front, pod, last_seq=3, certain=True)
        await holds(front, 4 * BLOCK)


async def test_an_answer_that_is_no_batch_is_passed_over() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer_frames(b"")
        await announcer.answer_frames(b"", b"short", FIRST)
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True, state="ready")
        assert await front.metric("task_failures_total") == 0


async def test_what_a_publisher_no_longer_has_is_given_up_after_some_attempts() -> None:
    async with following() as (front, pod, announcer):
        for _ in range(3):
            assert await announcer.asked() == 0
            await announcer.answer((7, FIRST), (8, SECOND))
        await row(front, pod, last_seq=8, certain=False)
        await holds(front, 2 * BLOCK)
        assert await front.metric("kv_replays_total", result="incomplete") == 1
        await announcer.send(9, THIRD)
        await holds(front, 3 * BLOCK)


async def test_a_replay_of_an_older_publisher_has_no_topic() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST), (1, SECOND), topic=False)
        await row(front, pod, last_seq=1, certain=True)


async def test_frames_that_are_no_announcement_are_passed_over() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer()
        await announcer.send_frames(b"alone")
        await announcer.send_frames(b"", b"short", FIRST)
        await announcer.send(0, FIRST)
        await row(front, pod, last_seq=0, gaps=0, certain=True)


async def test_a_replay_that_is_not_answered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.subscriber, "_REPLAY_ANSWER_S", 0.05)
    async with following() as (front, pod, announcer):

        async def gave_up() -> bool:
            return await front.metric("kv_replays_total", result="timeout") >= 1

        await until(gave_up)
        await announcer.send(0, FIRST)
        await holds(front, BLOCK)
        assert (await front.row(pod))["state"] == "ready"


async def test_a_gap_that_no_replay_fills_is_given_up() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        await announcer.send(5, SECOND)
        for _ in range(3):
            assert await announcer.asked() == 1
            await announcer.answer()
        await row(front, pod, last_seq=5, certain=False)
        await holds(front, 2 * BLOCK)
        await announcer.send(6, THIRD)
        await row(front, pod, last_seq=6, certain=False)


async def test_gap_after_gap_is_replayed_as_long_as_replays_bring_what_they_are_asked_for() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        await announcer.send(2, batch())
        for missing in (1, 3, 5, 7, 9):
            assert await announcer.asked() == missing
            # What comes while it is answered is behind another gap.
            await announcer.send(missing + 3, batch())
            await front.get("/health")
            await announcer.answer((missing, batch()), (missing + 1, batch()))
        assert await announcer.asked() == 11
        await announcer.answer((11, SECOND))
        await row(front, pod, last_seq=12, certain=True)
        await holds(front, 2 * BLOCK)
        assert await front.metric("kv_replays_total", result="complete") == 7


async def test_what_is_given_up_is_the_gap_that_no_attempt_filled_and_not_the_next_one() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        await announcer.send(2, batch())
        assert await announcer.asked() == 1
        await announcer.send(4, batch())
        await front.get("/health")
        await announcer.answer()
        for _ in range(2):
            assert await announcer.asked() == 1
            await announcer.answer()
        assert await announcer.asked() == 3
        await announcer.answer((3, SECOND))
        await row(front, pod, last_seq=4, certain=False)
        await holds(front, 2 * BLOCK)


async def test_a_hole_behind_what_is_given_up_is_asked_for() -> None:
    async with following() as (front, pod, announcer):
        for _ in range(3):
            assert await announcer.asked() == 0
            await announcer.answer((7, FIRST), (9, THIRD))
        assert await announcer.asked() == 8
        await announcer.answer((8, SECOND), (9, THIRD))
        await row(front, pod, last_seq=9, certain=False, cached_blocks={"gpu": 3, "cpu": 0})


@pytest.mark.usefixtures("_soon")
async def test_a_frame_that_comes_late_is_known_already() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.send(0, FIRST)
        await announcer.answer((0, FIRST))
        assert await announcer.asked() == 1
        await announcer.answer((1, SECOND), (2, THIRD))
        await holds(front, 3 * BLOCK)
        await announcer.send(1, SECOND)
        await announcer.send(2, THIRD)
        await announcer.send(3, FOURTH)
        await row(front, pod, last_seq=3, restarts=0, gaps=0, certain=True)
        assert await front.metric("kv_events_total", outcome="duplicate") == 3
        assert await front.metric("kv_events_total", outcome="applied") == 4


@pytest.mark.usefixtures("_soon")
async def test_a_batch_that_fell_between_replay_and_stream_is_found_by_a_look_at_the_tail() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        assert await announcer.asked() == 1
        await announcer.answer((1, SECOND))
        await row(front, pod, last_seq=1, certain=True)
        await holds(front, 2 * BLOCK)


async def test_a_replay_of_thousands_of_batches_leaves_turns_to_others() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer(*[(number, batch()) for number in range(3000)], end=False)
        assert (await front.get("/health")).status == 200
        await announcer.answer()
        await row(front, pod, last_seq=2999, certain=True)


async def test_an_event_stream_that_nobody_serves_costs_its_pod_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.subscriber, "_HANDSHAKE_S", 0.05)
    monkeypatch.setattr(gateway.subscriber, "_REPLAY_ANSWER_S", 0.05)
    told = {"0": {"endpoint": "tcp://127.0.0.1:1", "replay_endpoint": "tcp://127.0.0.1:1"}}
    async with scripted(sources=says(told), completions=says({})) as pod, serving([pod]) as front:

        async def gave_up() -> bool:
            return await front.metric("kv_replays_total", result="timeout") == 1

        await until(gave_up)
        assert (await front.post("/v1/completions", {"prompt": [1]})).status == 200
        assert (await front.row(pod))["certain"] is False


async def test_a_broken_connection_puts_the_pod_under_suspicion_until_it_is_polled() -> None:
    async with following() as (front, pod, announcer):
        assert await announcer.asked() == 0
        await announcer.answer((0, FIRST))
        await row(front, pod, last_seq=0, certain=True)
        polls = await front.metric("polls_total", result="ok")
        announcer.break_off()

        async def polled() -> bool:
            return await front.metric("polls_total", result="ok") > polls

        await until(polled)
        await asyncio.sleep(0)
        await row(front, pod, suspect=False, state="ready")
        await holds(front, BLOCK)
