from collections import Counter
from itertools import islice

import pytest

from loadgen.workload.arrivals import closed_loop
from loadgen.workload.datasets.distributions import Uniform
from loadgen.workload.datasets.shared_prefix import SharedPrefix


def uses(dataset: SharedPrefix, count: int = 10_000) -> Counter[int]:
    return Counter(request.prompt[0].seed for request in islice(dataset.requests(1), count))


def test_a_pool_is_asked_about_evenly() -> None:
    found = uses(SharedPrefix(prefixes=128, prefix_tokens=48_000))
    assert len(found) == 128
    assert max(found.values()) < 2 * min(found.values())


def test_prompts_are_a_prefix_and_a_question_of_their_own() -> None:
    made = list(SharedPrefix(prefixes=4, prefix_tokens=48_000, output_tokens=28, count=100).requests(1))
    assert {tuple(piece.tokens for piece in request.prompt) for request in made} == {(48_000, 256)}
    assert {tuple(piece.role for piece in request.prompt) for request in made} == {("system", "user")}
    assert len({request.prompt[1].seed for request in made}) == 100
    assert {request.output_tokens for request in made} == {28}


def test_a_prefix_is_cold_once() -> None:
    made = list(SharedPrefix(prefixes=8, prefix_tokens=64, count=200).requests(1))
    cold = [request.prompt[0].seed for request in made if request.phase == "cold"]
    assert len(set(cold)) == len(cold) == 8
    assert {request.phase for request in made} == {"cold", "warm"}


def test_prefixes_come_in_turn_in_round_robin() -> None:
    """150 groups of 5."""
    b2b = SharedPrefix(
        prefixes=150,
        prefix_tokens=6_000,
        question_tokens=1_200,
        output_tokens=1_000,
        draw="round-robin",
        count=750,
    )
    seeds = [request.prompt[0].seed for request in b2b.requests(1)]
    assert seeds == seeds[:150] * 5
    assert len(set(seeds)) == 150
    assert {(request.prompt_tokens, request.output_tokens) for request in b2b.requests(1)} == {(7_200, 1_000)}


def test_documents_in_two_rounds_four_at_a_time() -> None:
    """long-doc-qa."""
    two_rounds = SharedPrefix(prefixes=50, prefix_tokens=10_000, output_tokens=100, draw="round-robin", count=100)
    made = list(closed_loop(two_rounds.requests(1), 4))
    assert [request.phase for request in made] == ["cold"] * 50 + ["warm"] * 50
    assert [request.after for request in made] == [None] * 4 + list(range(96))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_a_zipf_draw_follows_its_exponent(exponent: float) -> None:
    found = uses(SharedPrefix(prefixes=10, prefix_tokens=64, draw="zipf", zipf_exponent=exponent), 40_000)
    shares = [(place + 1) ** -exponent for place in range(10)]
    ranked = sorted(found.values(), reverse=True)
    assert ranked == pytest.approx([40_000 * share / sum(shares) for share in shares], rel=0.25)


def test_a_fresh_prefix_takes_the_place_of_one_that_was_used_up() -> None:
    """spill-70k: one prefix per 96 requests."""
    made = list(SharedPrefix(prefixes=1, prefix_tokens=70_000, prefix_uses=96, count=96 * 3).requests(1))
    seeds = [request.prompt[0].seed for request in made]
    assert list(Counter(seeds).values()) == [96] * 3
    assert [at for at, request in enumerate(made) if request.phase == "cold"] == [0, 96, 192]


def test_a_prefix_used_once_is_always_cold() -> None:
    made = list(SharedPrefix(prefixes=2, prefix_tokens=64, prefix_uses=1, count=20).requests(1))
    assert len({request.prompt[0].seed for request in made}) == 20
    assert {request.phase for request in made} == {"cold"}


def test_a_prefix_keeps_the_length_it_was_drawn_with() -> None:
    made = SharedPrefix(prefixes=5, prefix_tokens=Uniform(low=100, high=10_000), count=200).requests(1)
    assert len({request.prompt[0] for request in made}) == 5


def test_there_may_be_no_question() -> None:
    made = SharedPrefix(prefixes=1, prefix_tokens=16_000, question_tokens=0, count=2).requests(1)
    assert [len(request.prompt) for request in made] == [1, 1]
