from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from config.schema import P2P
from index import Applied, BlockRemoved, Event, Publisher, Tier
from loadgen.profile import PROFILES
from loadgen.sim.arms import ARMS
from loadgen.sim.rows import row
from loadgen.sim.simulation import Settings, Simulation
from loadgen.workload.datasets import dataset
from scorers import WeightedSampling
from tests.loadgen.sim.fleets import DEMO, all_freed, asked, by_number, simulation


def test_a_request_takes_its_ways_its_step_and_its_answer() -> None:
    (outcome,) = simulation().run([asked(7, 2.0, prompt=100, output=3)])
    first = 2.0 + 0.0005 + 0.002 + 0.004 + 0.01 + 0.0005
    assert outcome.due == 2.0
    assert outcome.first == pytest.approx(first)
    assert outcome.ended == pytest.approx(first + 0.0084)
    assert (outcome.number, outcome.error, outcome.prompt_tokens, outcome.output_tokens) == (7, "", 100, 3)


def test_who_waits_for_another_is_sent_a_pause_after_its_end_and_not_before_it_is_due() -> None:
    load = [
        asked(0, 1.0, output=50),
        replace(asked(1), after=0, pause=2.0),
        replace(asked(2, 60.0), after=0, pause=2.0),
        replace(asked(3), after=1),
    ]
    run = simulation()
    outcomes = by_number(run.run(load))
    assert outcomes[0].ended is not None
    assert outcomes[1].due == pytest.approx(outcomes[0].ended + 2.0)
    assert outcomes[2].due == 60.0
    assert outcomes[3].due == pytest.approx(outcomes[1].ended)
    all_freed(run)


def test_conversations_go_on_in_their_order_and_find_what_was_said() -> None:
    parameters = {"conversations": 6, "turns": 4, "document_tokens": 3000, "question_tokens": 64, "live": 3}
    load = list(dataset("docqa", parameters).requests(1))
    run = simulation(concurrency=3)
    outcomes = by_number(run.run(load))
    assert outcomes.keys() == {request.number for request in load}
    for request in load:
        if request.after is not None:
            parent = outcomes[request.after]
            assert parent.ended is not None
            assert outcomes[request.number].due >= parent.ended + request.pause - 1e-9
    warm = [outcomes[request.number] for request in load if request.after is not None]
    assert any(outcome.gpu_tokens >= 2900 for outcome in warm)
    all_freed(run)


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_a_closed_loop_has_as_many_under_way_as_it_may_and_never_more(concurrency: int) -> None:
    outcomes = simulation(concurrency=concurrency).run([asked(number, output=number % 7 + 1) for number in range(40)])
    assert len(outcomes) == 40
    changes = sorted([(outcome.due, 1) for outcome in outcomes] + [(outcome.ended or 0.0, -1) for outcome in outcomes])
    under_way, most = 0, 0
    for _, change in changes:
        under_way += change
        most = max(most, under_way)
    assert most == concurrency
    assert under_way == 0


def test_a_client_that_gives_up_has_failed_and_its_pod_computes_no_more_for_it() -> None:
    run = simulation(1, timeout_s=0.5)
    outcomes = by_number(run.run([asked(0, prompt=20_000), asked(1, 1.0), asked(2, 2.0, output=5_000)]))
    assert [outcomes[number].error for number in range(3)] == ["client timeout", "", "client timeout"]
    assert outcomes[0].first is None
    assert outcomes[2].first is not None
    assert run.fleet.pods[0].engine.computed_tokens < 20_000
    all_freed(run)
    result = row("s", "a", 1, run)
    assert (result.completed, result.failed) == (1, 2)


def test_a_prompt_that_no_pod_can_hold_has_failed_and_does_the_others_no_harm() -> None:
    alone = by_number(simulation(1).run([asked(0, output=100)]))
    run = simulation(1)
    outcomes = by_number(run.run([asked(0, output=100), asked(1, 0.1, prompt=70_000)]))
    assert outcomes[0].ended == pytest.approx(alone[0].ended)
    assert "more than the GPU's blocks hold" in outcomes[1].error
    all_freed(run)


LOAD = [asked(number, number * 0.05, prompt=1000, output=20) for number in range(120)]  # keeps two pods busy


def test_of_a_lost_pod_nothing_is_left_and_what_was_on_it_has_failed() -> None:
    run = simulation(3)
    run.clock.at(2.0, lambda: run.remove_pod(1))
    outcomes = by_number(run.run(LOAD))
    assert outcomes.keys() == set(range(120))
    failed = [outcome for outcome in outcomes.values() if outcome.error]
    assert failed
    assert all((outcome.error, outcome.pod, outcome.due < 2.0) == ("pod lost", 1, True) for outcome in failed)
    assert all(outcome.pod != 1 for outcome in outcomes.values() if outcome.due > 2.0)
    assert Publisher("10.0.0.1:8000", 0) not in run.fleet.index.publishers()
    all_freed(run)


def test_a_pod_lost_while_requests_are_on_their_way_to_it_stays_dead() -> None:
    run = simulation(1)
    run.clock.at(1.0002, lambda: run.remove_pod(0))
    outcomes = by_number(run.run([asked(0, 0.5, output=2_000), asked(1, 1.0)]))
    assert [outcomes[number].error for number in range(2)] == ["pod lost", "pod lost"]


def test_an_answer_that_was_whole_when_its_pod_was_lost_has_arrived() -> None:
    run = simulation(1)
    (outcome,) = simulation(1).run([asked(0)])
    assert outcome.ended is not None
    run.clock.at(outcome.ended - 0.0001, lambda: run.remove_pod(0))
    assert run.run([asked(0)]) == [outcome]


def test_a_pod_that_restarts_comes_up_empty_and_serves_again() -> None:
    run = simulation(2)
    held: list[int] = []

    def look() -> None:
        held.append(sum(run.fleet.index.blocks(run.fleet.pods[1].publisher).values()))

    run.clock.at(2.0, lambda: run.restart_pod(1, 1.0))
    run.clock.at(3.001, look)
    outcomes = by_number(run.run(LOAD))
    assert outcomes.keys() == set(range(120))
    assert held == [1]  # the prompt that tells of a block size
    assert not [outcome for outcome in outcomes.values() if outcome.pod == 1 and 2.0 < outcome.due < 3.0]
    assert [outcome for outcome in outcomes.values() if outcome.pod == 1 and outcome.due > 3.0]
    all_freed(run)


def test_a_pod_that_drains_ends_its_work_and_goes() -> None:
    run = simulation(3)
    run.clock.at(2.0, lambda: run.drain_pod(1))
    outcomes = by_number(run.run(LOAD))
    assert not [outcome for outcome in outcomes.values() if outcome.error]
    assert max(outcome.due for outcome in outcomes.values() if outcome.pod == 1) < 2.0
    assert max(outcome.ended or 0.0 for outcome in outcomes.values() if outcome.pod == 1) > 2.0
    assert 1 not in run.fleet.pods
    all_freed(run)


def test_a_pod_that_comes_up_where_one_drained_is_not_drained() -> None:
    run = simulation(2)
    run.clock.at(1.0, lambda: run.drain_pod(1))
    run.clock.at(1.01, lambda: run.restart_pod(1, 0.01))
    outcomes = by_number(run.run(LOAD))
    assert 1 in run.fleet.pods
    assert [outcome for outcome in outcomes.values() if outcome.pod == 1 and outcome.due > 3.0]
    all_freed(run)


def test_pulls_over_a_link_that_is_slow_for_a_while_take_longer_meanwhile() -> None:
    def pulled_s(slow_from: float | None) -> list[float]:
        """What two pulls of the same length took, the second one long after the first."""
        run = simulation(2, arm="load+pull")
        if slow_from is not None:
            run.clock.at(slow_from, lambda: run.slow_link(0, 5.0, 50.0))
        took: list[float] = []
        links, now = run.fleet.links, run.clock
        for at in (1.0, 20.0):
            now.at(at, lambda at=at: links.send(0, 1, 0.5, lambda: took.append(now.now - at)))  # type: ignore[misc]
        run.run([asked(0, at=60.0)])
        all_freed(run)
        return took

    assert pulled_s(None) == pytest.approx([0.5, 0.5])
    assert pulled_s(0.5) == pytest.approx([4.91, 0.5])  # a fiftieth of the speed until 5.5 s


def test_a_pod_that_is_added_serves() -> None:
    run = simulation(1)
    run.clock.at(2.0, lambda: run.add_pod(5))
    outcomes = by_number(run.run(LOAD))
    assert min(outcome.due for outcome in outcomes.values() if outcome.pod == 5) >= 2.0
    assert not [outcome for outcome in outcomes.values() if outcome.error]
    all_freed(run)


def test_a_pod_is_not_lost_twice_nor_added_twice() -> None:
    run = simulation(2)
    run.clock.run(1.5)
    with pytest.raises(ValueError, match=r"at 1\.5 s there is a pod 1 already"):
        run.add_pod(1)
    run.remove_pod(1)
    for change in (run.remove_pod, run.drain_pod):
        with pytest.raises(ValueError, match=r"at 1\.5 s there is no pod 1"):
            change(1)


def test_a_load_that_does_not_end_is_an_error_and_not_a_shorter_one() -> None:
    made = Simulation(Settings(profile=DEMO, pods=1, horizon_s=60.0), ARMS["affinity"], seed=1)
    with pytest.raises(ValueError, match="1 requests had not ended after 60 s"):
        made.run([asked(0), asked(1, at=100.0)])


def test_where_no_pod_is_left_all_fail_at_once() -> None:
    run = simulation(1, concurrency=2)
    run.clock.at(0.1, lambda: run.remove_pod(0))
    outcomes = by_number(run.run([asked(number, output=200) for number in range(3_000)]))
    assert len(outcomes) == 3_000
    assert {outcome.error for outcome in outcomes.values()} == {"pod lost", "no_pod_ready"}


def test_what_lost_pods_did_is_counted() -> None:
    run = simulation(2)
    run.clock.at(30.0, lambda: run.remove_pod(0))
    run.clock.at(30.0, lambda: run.remove_pod(1))
    run.run([*LOAD, asked(999, 40.0)])
    cached = sum(outcome.gpu_tokens + outcome.cpu_tokens for outcome in run.outcomes)
    assert row("s", "a", 1, run).recomputed_tokens == 120 * 1000 - cached


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_what_a_pod_tells_arrives_in_the_order_of_telling(steps: list[tuple[float, float]]) -> None:
    """Also where two batches are due at one moment, but for the rounding of its sum."""
    run = simulation(1)
    pod = run.fleet.pods[0]
    told: list[Event] = []
    apply = run.fleet.index.apply

    def listened(publisher: Publisher, events: Sequence[Event]) -> Applied:
        told.extend(events)
        return apply(publisher, events)

    run.fleet.index.apply = listened  # type: ignore[method-assign]
    now, sent = 0.0, 0
    for step, idle in steps:

        def publish(seconds: float) -> None:
            nonlocal sent
            pod.feed.publish([BlockRemoved([sent], Tier.GPU)], seconds)
            sent += 1

        run.clock.at(now, lambda step=step, publish=publish: publish(step))  # type: ignore[misc]
        run.clock.at(now + step, lambda publish=publish: publish(0.0))  # type: ignore[misc]
        now += step + idle
    run.clock.run(now + 5.0)
    assert [event.block_hashes for event in told if isinstance(event, BlockRemoved)] == [[n] for n in range(sent)]


# In ms: tokens, recomputed, pulled.
LADDER = [
    (2_048, 78.3, 34.6),
    (8_192, 249.9, 56.5),
    (16_384, 510.3, 85.9),
    (32_768, 1_173.2, 165.2),
    (49_152, 1_987.7, 235.0),
]


def test_a_pair_of_pods_climbs_the_published_ladder() -> None:
    """Requests go to the two pods in turn: what one was asked, the other one pulls; then something new to both."""
    arm = replace(ARMS["round-robin"], p2p=P2P(min_cached_token_delta=1024, source=WeightedSampling()))
    lengths = [1_024, *(tokens for tokens, _, _ in LADDER)]  # the first one pays the set-up
    load = []
    for rung, tokens in enumerate(lengths):
        for turn, seed in enumerate((rung, rung, 100 + rung, 200 + rung)):
            number = 4 * rung + turn
            load.append(asked(number, 20.0 * number, prompt=tokens, output=1, seed=seed))
    run = simulation(2, profile=PROFILES["gpt-oss-120b-h200"], arm=arm)
    outcomes = by_number(run.run(load))

    def ms(number: int) -> float:
        return ((outcomes[number].first or 0.0) - outcomes[number].due) * 1e3

    for rung, (tokens, recompute, pull) in enumerate(LADDER, start=1):
        assert (outcomes[4 * rung + 1].source, outcomes[4 * rung + 1].pulled_tokens) == (0, tokens)
        assert ms(4 * rung + 1) == pytest.approx(pull, rel=0.1)
        for fresh in (0, 2, 3):
            assert outcomes[4 * rung + fresh].source is None
            assert ms(4 * rung + fresh) == pytest.approx(recompute, rel=0.1)
    assert row("s", "a", 1, run).pulled_tokens == sum(lengths)
    all_freed(run)
