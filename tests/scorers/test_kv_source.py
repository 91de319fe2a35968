from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scorers import Candidate, choose_source, pullable_tokens, sample_source
from scorers.kv_source import _coordinate

BLOCK = 16
fleets = st.lists(st.from_type(Candidate), max_size=8, unique_by=lambda candidate: (candidate.pod, candidate.rank))


def holder(name: str, blocks: int, **columns: Any) -> Candidate:
    """A pod with an address and this many confirmed blocks in its CPU tier, and therefore at least as many in any."""
    tokens = blocks * BLOCK
    defaults: dict[str, Any] = {"p2p_host": name, "p2p_port": 7777, "cpu_tokens": tokens, "any_tokens": tokens}
    return Candidate(pod=f"http://{name}:8000", **(defaults | columns))


def computing(**columns: Any) -> Candidate:
    return Candidate(pod="http://computing:8000", p2p_host="computing", p2p_port=7777, **columns)


def sampled(*candidates: Candidate, request_id: str = "r") -> Candidate | None:
    return sample_source(request_id, BLOCK, candidates)


def picks(ids: int, *candidates: Candidate) -> Counter[str]:
    names: Counter[str] = Counter()
    for index in range(ids):
        source = sampled(*candidates, request_id=f"req-{index}")
        assert source is not None
        assert source.p2p_host is not None
        names[source.p2p_host] += 1
    return names


# --- who is sampled


def test_of_1_and_3_blocks_the_3_block_pod_is_the_source_with_its_48_tokens() -> None:
    source = sampled(holder("a", 1), holder("b", 3))
    assert source == holder("b", 3)
    assert pullable_tokens(source) == 48


def test_nobody_who_holds_anything_is_no_source() -> None:
    assert sampled(holder("a", 0), holder("b", 0)) is None
    assert sampled() is None


@pytest.mark.parametrize("missing", ["p2p_host", "p2p_port"])
def test_a_pod_without_an_address_does_not_suppress_one_that_has_less(missing: str) -> None:
    assert sampled(holder("rich", 10, **{missing: None}), holder("poor", 2)) == holder("poor", 2)


def test_longer_queues_serve_fewer_pulls_but_some() -> None:
    got = picks(400, holder("a", 3, waiting=12), holder("b", 3, waiting=2), holder("c", 3, waiting=7))
    assert got["b"] > got["c"] > got["a"] > 0


def test_of_queues_0_and_1_both_serve_and_the_idle_one_more() -> None:
    got = picks(600, holder("idle", 3, waiting=0), holder("busy", 3, waiting=1))
    assert got["idle"] > got["busy"] > 100


def test_two_blocks_more_beat_any_queue() -> None:
    assert picks(400, holder("long", 5, waiting=20), holder("idle", 3, waiting=0)) == {"long": 400}


def test_one_block_more_is_within_the_band_and_the_idle_pod_leads() -> None:
    got = picks(400, holder("long", 4, waiting=20), holder("idle", 3, waiting=0))
    assert got["idle"] > got["long"] > 0


def test_the_tokens_reported_are_the_sampled_pods_own() -> None:
    fleet = [holder("long", 4, waiting=20), holder("idle", 3, waiting=0)]
    own = {"long": 64, "idle": 48}
    for index in range(400):
        source = sampled(*fleet, request_id=f"req-{index}")
        assert source is not None
        assert pullable_tokens(source) == own[source.p2p_host or ""]


def test_equal_queues_all_serve() -> None:
    assert set(picks(64, holder("a", 3), holder("b", 3), holder("c", 3))) == {"a", "b", "c"}


def test_an_unknown_queue_counts_as_empty() -> None:
    got = picks(400, holder("unknown", 3, waiting=None), holder("busy", 3, waiting=9))
    assert got["unknown"] > got["busy"] > 0
    assert got == picks(400, holder("unknown", 3, waiting=0), holder("busy", 3, waiting=9))


def test_gpu_only_blocks_lose_to_fewer_in_the_cpu_tier() -> None:
    gpu_only = holder("gpu", 10, cpu_tokens=0, gpu_tokens=160)
    assert sampled(gpu_only, holder("cpu", 3)) == holder("cpu", 3)
    assert sampled(gpu_only) is None


def test_a_pod_without_tier_data_is_believed_on_any_tier() -> None:
    untiered = holder("untiered", 10, cpu_tokens=0, gpu_tokens=160, tiered=False)
    assert sampled(untiered, holder("cpu", 3)) == untiered
    assert pullable_tokens(untiered) == 160


def test_speculative_blocks_alone_are_no_source() -> None:
    assert sampled(holder("a", 0, speculative_tokens=160)) is None
    assert sampled(holder("a", 0, speculative_tokens=160, tiered=False)) is None


def test_consecutive_request_ids_spread_evenly() -> None:
    tenths = Counter(int(_coordinate(f"req-{index}") * 10) for index in range(1000))
    assert set(tenths) == set(range(10))
    assert 60 < min(tenths.values()) <= max(tenths.values()) < 140


def test_the_first_few_request_ids_already_differ() -> None:
    assert picks(8, holder("a", 3), holder("b", 3)).keys() == {"a", "b"}


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs"])))
def test_every_request_id_has_a_coordinate_in_0_to_1(request_id: str) -> None:
    assert 0 <= _coordinate(request_id) < 1


@given(st.text(), fleets, st.data())
def test_the_same_id_gives_the_same_pod_in_any_order(request_id: str, fleet: list[Candidate], data: Any) -> None:
    shuffled = data.draw(st.permutations(fleet))
    assert sample_source(request_id, BLOCK, fleet) == sample_source(request_id, BLOCK, shuffled)


@given(st.text(), fleets)
def test_a_source_has_an_address_and_is_within_a_block_of_the_most(request_id: str, fleet: list[Candidate]) -> None:
    source = sample_source(request_id, BLOCK, fleet)
    most = max(map(pullable_tokens, fleet), default=0)
    if source is None:
        assert most == 0
    else:
        assert source in fleet
        assert source.p2p_host is not None
        assert source.p2p_port is not None
        assert 0 < pullable_tokens(source) <= most <= pullable_tokens(source) + BLOCK


# --- whether the sampled one is named


def decide(source: Candidate | None, chosen: Candidate, delta: int) -> str:
    decision = choose_source(source, chosen, min_cached_token_delta=delta)
    assert decision.source == (source if decision.reason == "named" else None)
    return decision.reason


def test_no_lead_is_below_every_floor() -> None:
    assert decide(holder("a", 2), computing(any_tokens=32), 1) == "below-floor"


def test_an_address_survives_as_it_was_configured() -> None:
    source = sampled(holder("a", 2, p2p_host="[fd00::1]"))
    assert source is not None
    decision = choose_source(source, computing(), min_cached_token_delta=1)
    assert decision.source is not None
    assert (decision.source.p2p_host, decision.source.p2p_port) == ("[fd00::1]", 7777)


def test_48_tokens_against_16_are_a_source_at_delta_1() -> None:
    assert decide(holder("a", 3), computing(any_tokens=16), 1) == "named"


def test_32_tokens_against_16_are_none_at_delta_17() -> None:
    assert decide(holder("a", 2), computing(any_tokens=16), 17) == "below-floor"
    assert decide(holder("a", 2), computing(any_tokens=16), 16) == "named"


def test_6_cpu_blocks_against_5_confirmed_on_the_gpu_are_none_at_delta_2_blocks() -> None:
    assert decide(holder("a", 6), computing(gpu_tokens=80, any_tokens=80), 2 * BLOCK) == "below-floor"


def test_6_cpu_blocks_against_6_speculative_ones_are_a_source() -> None:
    assert decide(holder("a", 6), computing(speculative_tokens=96), 2 * BLOCK) == "named"


def test_the_lead_is_over_what_the_source_can_serve_not_over_what_it_holds() -> None:
    assert decide(holder("a", 2, any_tokens=160, gpu_tokens=160), computing(any_tokens=32), 1) == "below-floor"


def test_nothing_sampled_is_no_holder() -> None:
    assert decide(None, computing(), 1) == "no-holder"


def test_the_computing_pod_does_not_pull_from_itself() -> None:
    assert decide(holder("a", 6), holder("a", 6), 1) == "self"


def test_a_pod_known_under_two_urls_does_not_pull_from_itself() -> None:
    alias = msgspec.structs.replace(holder("a", 0), pod="http://alias:8000")
    assert decide(holder("a", 6), alias, 1) == "self"


def test_another_rank_of_the_same_host_is_a_valid_source() -> None:
    other_rank = holder("a", 6, rank=1, p2p_port=7778)
    decision = choose_source(other_rank, holder("a", 0, rank=0), min_cached_token_delta=1)
    assert (decision.source, decision.reason) == (other_rank, "named")
    assert other_rank.p2p_port == 7777 + other_rank.rank


@pytest.mark.parametrize("delta", [0, -1])
def test_a_delta_below_1_is_an_error(delta: int) -> None:
    with pytest.raises(ValueError, match="min_cached_token_delta must be >= 1"):
        choose_source(None, computing(), min_cached_token_delta=delta)


@given(source=..., chosen=..., delta=st.integers(1, 5000))
def test_a_named_source_leads_by_the_delta_and_is_not_the_computing_pod(
    source: Candidate, chosen: Candidate, delta: int
) -> None:
    assume(pullable_tokens(source) > 0)
    decision = choose_source(source, chosen, min_cached_token_delta=delta)
    leads = pullable_tokens(source) - chosen.any_tokens >= delta
    same = (source.pod, source.rank) == (chosen.pod, chosen.rank)
    if decision.reason == "named":
        assert decision.source is source
        assert leads
        assert not same
    else:
        assert decision.source is None
        assert decision.reason == "self" or not leads


def test_a_source_is_believed_only_as_far_as_its_credit() -> None:
    assert pullable_tokens(Candidate(pod="http://a:1", p2p_host="a", p2p_port=2, cpu_tokens=100, credit=0.5)) == 50
