from itertools import islice

from loadgen.workload.datasets.distributions import LogNormal, Uniform
from loadgen.workload.datasets.random_prompts import RandomPrompts


def test_prompts_share_nothing() -> None:
    made = list(RandomPrompts(count=500).requests(1))
    assert len({request.prompt[0].seed for request in made}) == len({request.session for request in made}) == 500
    assert {(request.prompt_tokens, request.output_tokens, request.after) for request in made} == {(1024, 128, None)}


def test_lengths_are_drawn() -> None:
    dataset = RandomPrompts(input_tokens=Uniform(low=10, high=20), output_tokens=LogNormal(median=50, mean=80))
    made = list(islice(dataset.requests(1), 500))
    assert {request.prompt_tokens for request in made} == set(range(10, 21))
    assert len({request.output_tokens for request in made}) > 50


def test_a_shorter_load_is_the_beginning_of_a_longer_one() -> None:
    assert list(RandomPrompts(count=5).requests(1)) == list(islice(RandomPrompts().requests(1), 5))
