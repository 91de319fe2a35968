import pytest
from msgspec.structs import replace

from tests.loadgen.sim.pods import ROOMY, Pods, sequential

# A token takes 10 ms to compute and 1 ms to pull; nothing else takes time, but the set-up and control.
PULLS = replace(
    ROOMY,
    request_fixed_ms=0.0,
    step_fixed_ms=0.0,
    prefill_us_per_token=10_000.0,
    decode_ms=1_000.0,
    decode_us_per_kilotoken_context=0.0,
    kv_bytes_per_token=1,
    pull_fixed_ms=50.0,
    pull_us_per_token=1_000.0,
    pull_setup_ms=6_000.0,
)
CONTROL_S, SETUP_S, TOKEN_S = 0.05, 6.0, 0.01
PROMPT = sequential(0, 100)
ALONE_S = CONTROL_S + 0.1 + TOKEN_S


def met(count: int = 2) -> Pods:
    """Pods of which 0 holds PROMPT, and every other one has pulled from it before."""
    pods = Pods(PULLS, count)
    pods.answered(sequential(900, 8))
    for number in range(1, count):
        pods.answered(sequential(900, 8), pod=number, source=0)
    pods.answered(PROMPT)
    return pods


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=1e-6)


def test_a_pull_takes_control_the_link_and_the_last_token() -> None:
    pods = met()
    assert pods.answered(PROMPT, pod=1, source=0) == about(ALONE_S)
    assert pods.sequences[-1].reused == (0, 0, 100)
    assert (pods.loaders[1].pulls, pods.loaders[1].empty_pulls, pods.loaders[1].pulled_tokens) == (2, 0, 108)
    pods.all_over()


def test_what_was_pulled_is_in_both_tiers() -> None:
    pods = met(3)
    pods.answered(PROMPT, pod=1, source=0)
    assert pods.answered(PROMPT, pod=1) < 2 * TOKEN_S
    assert pods.sequences[-1].reused == (96, 4, 0)
    pods.loaders[2]._met[1] = pods.engines[1], 0.0
    pods.answered(PROMPT, pod=2, source=1)
    assert pods.sequences[-1].reused == (0, 0, 100)


def test_only_the_first_pull_of_a_pair_sets_it_up() -> None:
    pods = Pods(PULLS, 2)
    pods.answered(PROMPT)
    pods.answered(sequential(500, 100))
    assert pods.answered(PROMPT, pod=1, source=0) == about(SETUP_S + ALONE_S)
    assert pods.answered(sequential(500, 100), pod=1, source=0) == about(ALONE_S)
    assert pods.answered(sequential(700, 100), pod=1) == about(100 * TOKEN_S)
    # The other direction is another pair.
    assert pods.answered(sequential(700, 100), pod=0, source=1) == about(SETUP_S + ALONE_S)


def test_a_second_pull_of_a_pair_waits_for_its_set_up() -> None:
    pods = Pods(PULLS, 2)
    pods.answered(PROMPT)
    pods.answered(sequential(500, 100))
    began = pods.clock.now
    first = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(began + 4.0)
    second = pods.submit(sequential(500, 100), pod=1, source=0)
    pods.clock.run()
    assert pods.time("first", first) - began >= SETUP_S + ALONE_S
    assert pods.time("first", second) - began == about(SETUP_S + CONTROL_S + 0.2 + TOKEN_S * 2)


def test_a_source_that_was_restarted_is_met_anew_and_holds_nothing() -> None:
    pods = met()
    pods.lose(0)
    pods.start(0)
    assert pods.answered(PROMPT, pod=1, source=0) == about(SETUP_S + 100 * TOKEN_S)
    assert pods.loaders[1].empty_pulls == 1


def test_only_what_the_source_has_is_pulled() -> None:
    pods = met()
    pods.answered(PROMPT[:60] + sequential(7_000, 40), pod=1, source=0)
    assert pods.sequences[-1].reused == (0, 0, 60)


def test_what_the_consumer_has_is_not_pulled() -> None:
    pods = met()
    pods.answered(PROMPT[:40], pod=1)
    pods.answered(PROMPT, pod=1, source=0)
    assert pods.sequences[-1].reused == (40, 0, 60)


def test_what_the_source_has_on_its_gpu_only_is_not_pulled() -> None:
    pods = Pods(replace(PULLS, cpu_blocks=10), 2)
    pods.answered(PROMPT)
    assert pods.answered(PROMPT, pod=1, source=0) == about(SETUP_S + 100 * TOKEN_S)
    assert pods.loaders[1].empty_pulls == 1


def test_what_the_source_evicts_while_it_is_asked_is_not_pulled() -> None:
    pods = Pods(replace(PULLS, cpu_blocks=25, pull_setup_ms=0.0), 2)
    pods.answered(PROMPT)
    pods.submit(sequential(500, 100))
    pulls = pods.submit(PROMPT, pod=1, source=0)  # the source is computing, and what it computes displaces the prompt
    pods.clock.run()
    assert pulls.reused == (0, 0, 0)
    pods.all_over()


def test_a_busy_source_answers_at_the_end_of_a_step_and_sends_at_the_end_of_another() -> None:
    pods = met()
    began = pods.clock.now
    pods.submit([1, 2, 3, 4], 100)  # steps of 1 s after the first
    pods.clock.run(began + 0.04 + 10.4)
    pulled = pods.answered(PROMPT, pod=1, source=0)
    assert pulled == about(0.6 + 1.0 + 0.1 + TOKEN_S)


def test_pulls_do_not_change_when_the_source_answers_its_own() -> None:
    pods = met()
    began = pods.clock.now
    own = pods.submit([1, 2, 3, 4], 100)
    pods.clock.run(began + 0.04 + 10.4)
    pods.answered(PROMPT, pod=1, source=0)
    assert pods.time("ended", own) - began == about(0.04 + 99.0)


def test_pulls_that_share_a_link_take_longer() -> None:
    pods = met(4)
    began = pods.clock.now
    pulls = [pods.submit(PROMPT, pod=number, source=0) for number in (1, 2, 3)]
    pods.clock.run()
    assert [pods.time("first", pull) - began for pull in pulls] == [about(CONTROL_S + 0.3 + TOKEN_S)] * 3


@pytest.mark.parametrize("after", [0.01, CONTROL_S + 0.05], ids=["asked", "sending"])
def test_a_source_lost_meanwhile_means_recomputing(after: float) -> None:
    pods = met()
    pulls = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(pods.clock.now + after)
    pods.lose(0)
    pods.clock.run()
    assert pods.told(pulls) == ["first", "ended"]
    assert pulls.reused == (0, 0, 0)
    pods.all_over()


@pytest.mark.parametrize("after", [0.01, CONTROL_S + 0.05], ids=["asked", "sending"])
def test_a_source_restarted_meanwhile_means_recomputing(after: float) -> None:
    pods = met()
    pulls = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(pods.clock.now + after)
    pods.lose(0)
    pods.start(0)
    pods.clock.run()
    assert pods.told(pulls) == ["first", "ended"]
    assert pulls.reused == (0, 0, 0)


def test_a_source_lost_in_a_step_in_which_it_was_asked_means_recomputing() -> None:
    pods = met()
    pods.submit([1, 2, 3, 4], 100)
    pulls = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(pods.clock.now + 0.02)
    pods.lose(0)
    pods.clock.run()
    assert pulls.reused == (0, 0, 0)
    assert pods.told(pulls) == ["first", "ended"]


def test_no_such_source_means_recomputing() -> None:
    pods = met()
    assert pods.answered(PROMPT, pod=1, source=7) == about(100 * TOKEN_S)


@pytest.mark.parametrize("after", [0.0, 0.01, CONTROL_S + 0.05, CONTROL_S + 0.1 + 0.005])
def test_a_consumer_whose_client_leaves_frees_all(after: float) -> None:
    pods = met()
    pulls = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(pods.clock.now + after)
    pods.engines[1].abort(pulls)
    pods.clock.run()
    assert pods.told(pulls) == []
    pods.all_over()


def test_a_consumer_that_is_lost_pulls_no_longer() -> None:
    pods = met()
    pulls = pods.submit(PROMPT, pod=1, source=0)
    pods.clock.run(pods.clock.now + 0.06)
    pods.lose(1)
    pods.clock.run()
    assert pods.told(pulls) == []
    pods.all_over()


def test_pods_may_pull_from_each_other() -> None:
    pods = met()
    pods.answered(sequential(5_000, 100), pod=1)
    pods.answered(sequential(900, 8), pod=0, source=1)
    pods.submit(sequential(8_000, 8), 30, pod=0)
    pods.submit(sequential(9_000, 8), 30, pod=1)
    pods.submit(PROMPT, 3, pod=1, source=0)
    pods.submit(sequential(5_000, 100), 3, pod=0, source=1)
    pods.clock.run()
    assert [sequence.reused for sequence in pods.sequences[-2:]] == [(0, 0, 100)] * 2
    pods.all_over()
