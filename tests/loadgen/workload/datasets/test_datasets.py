"""What holds for every dataset."""

from itertools import islice, pairwise
from typing import Any

import pytest

from loadgen.workload import Request
from loadgen.workload.datasets import DATASETS, dataset
from loadgen.workload.seeds import answer_seed

SMALL: dict[str, dict[str, Any]] = {
    "random": {"input_tokens": {"type": "uniform", "low": 10, "high": 90}},
    "shared-prefix": {"prefixes": 4, "prefix_tokens": 64, "draw": "zipf", "prefix_uses": 7},
    "docqa": {"conversations": 40, "document_tokens": 100, "live": 8, "pause": 2.0},
    "chat": {},
    "agentic": {"forks": {"probability": 0.2, "turns": 3}},
}
SECTIONS = {
    "random": ["count", "input_tokens", "output_tokens"],
    "shared-prefix": ["prefixes", "prefix_tokens", "output_tokens", "prefix_uses", "count"],
    "docqa": ["conversations", "document_tokens", "turns", "question_tokens", "output_tokens", "live"],
    "chat": ["conversations", "turns", "question_tokens", "output_tokens", "max_prompt_tokens"],
    "agentic": ["sessions", "projects", "turns", "new_tokens", "output_tokens", "max_prompt_tokens"],
}


def some(name: str, seed: int = 1, count: int = 200) -> list[Request]:
    return list(islice(dataset(name, SMALL[name]).requests(seed), count))


@pytest.fixture(params=sorted(DATASETS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_dataset_is_tested_here() -> None:
    assert SMALL.keys() == SECTIONS.keys() == DATASETS.keys()


def test_a_seed_is_a_load(name: str) -> None:
    assert some(name) == some(name)
    texts = {piece.seed for made in some(name) for piece in made.prompt if piece.answer_of is None}
    others = {piece.seed for made in some(name, seed=2) for piece in made.prompt if piece.answer_of is None}
    assert not texts & others


def test_what_a_request_waits_for_is_known_before_it(name: str) -> None:
    made = some(name)
    assert [request.number for request in made] == list(range(len(made)))
    assert all(request.after is None or 0 <= request.after < request.number for request in made)
    assert all(request.at == 0 and (request.pause >= 0) for request in made)


def test_no_request_is_empty(name: str) -> None:
    made = some(name)
    assert all(request.output_tokens >= 1 for request in made)
    assert all(piece.tokens >= 1 for request in made for piece in request.prompt)
    assert all(request.prompt for request in made)


def test_an_answer_in_a_prompt_is_the_answer_that_was_asked_for(name: str) -> None:
    lengths = {request.number: request.output_tokens for request in some(name)}
    for request in some(name):
        for piece in request.prompt:
            if piece.answer_of is not None:
                assert piece.seed == answer_seed(piece.answer_of)
                assert piece.tokens == lengths[piece.answer_of]
                assert piece.role == "assistant"


def test_a_session_says_again_what_it_said(name: str) -> None:
    turns: dict[str, list[Request]] = {}
    for request in some(name):
        turns.setdefault(request.session, []).append(request)
    for session in turns.values():
        for before, after in pairwise(session):
            assert after.after == before.number
            assert after.prompt[: len(before.prompt)] == before.prompt
            assert after.prompt[len(before.prompt)].answer_of == before.number


def test_an_unknown_parameter_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"dataset {name}: .*unknown field `colour`"):
        dataset(name, {**SMALL[name], "colour": 1})


@pytest.mark.parametrize("value", [0, -1])
def test_what_must_be_there_is_at_least_one(name: str, value: int) -> None:
    for field in SECTIONS[name]:
        with pytest.raises(ValueError, match=f"dataset {name}: {field} must be at least 1, not {value}"):
            dataset(name, {**SMALL[name], field: value})


def test_an_unknown_dataset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no dataset 'nothing'; there are random, shared-prefix, docqa, chat, agentic"):
        dataset("nothing", {})
