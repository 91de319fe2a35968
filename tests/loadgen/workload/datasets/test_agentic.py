from itertools import islice
from statistics import median

import pytest

from loadgen.workload.datasets import dataset
from loadgen.workload.datasets.agentic import Agentic, Forks
from loadgen.workload.datasets.distributions import Uniform
from tests.loadgen.workload.prefixes import prefixes, with_answer


def test_sessions_share_tools_and_some_share_a_project() -> None:
    firsts = [made for made in Agentic(sessions=300, turns=1).requests(1) if made.phase == "first"]
    assert len({made.prompt[0] for made in firsts}) == 1
    assert [piece.tokens for piece in firsts[0].prompt[:2]] == [32_000, 20_000]
    projects = [made.prompt[1] for made in firsts]
    assert 20 < len(set(projects)) <= 50
    assert max(map(projects.count, projects)) > 40
    assert len({made.prompt[2] for made in firsts}) == 300


def test_pauses_are_short_for_tools_and_long_for_people() -> None:
    def pauses(share: float) -> float:
        made = islice(Agentic(human_share=share).requests(1), 3_000)
        return median(request.pause for request in made if request.phase == "next")

    assert pauses(0.0) == pytest.approx(1.8, rel=0.1)
    assert pauses(1.0) == pytest.approx(25, rel=0.1)


def test_a_burst_of_children_goes_on_from_what_the_parent_knows() -> None:
    """fork-43: its prefix is 40K tokens."""
    fork = Agentic(
        sessions=1,
        turns=1,
        tool_tokens=40_000 - 256 - 100,
        project_tokens=0,
        own_tokens=0,
        new_tokens=256,
        output_tokens=100,
        forks=Forks(children=43, output_tokens=64),
    )
    parent, *children = fork.requests(1)
    assert len(children) == 43
    assert {(child.after, child.pause, child.phase) for child in children} == {(0, 0.0, "fork")}
    known = prefixes(with_answer(parent), 64)
    assert len(known) == 40_000 // 64
    assert all(prefixes(child.prompt, 64)[: len(known)] == known for child in children)
    assert len({child.session for child in children}) == len({child.prompt[-1] for child in children}) == 43


def test_long_conversations_with_tools_between_their_turns() -> None:
    """pd-agentic: 288 requests, prompts up to 100K."""
    pd = Agentic(
        sessions=24,
        turns=12,
        tool_tokens=10_000,
        projects=1,
        own_tokens=10_000,
        new_tokens=4_500,
        output_tokens=500,
        tool_pause=Uniform(low=1, high=20),
        human_share=0,
        max_prompt_tokens=100_000,
    )
    made = list(pd.requests(1))
    assert len(made) == 288
    assert max(request.prompt_tokens for request in made) == 40_000 + 4_500 + 11 * 5_000
    assert all(1 <= request.pause <= 20 for request in made if request.phase == "next")


def test_children_have_turns_of_their_own_while_the_parent_goes_on() -> None:
    forks = Forks(children=2, turns=3, task_tokens=11, new_tokens=22)
    made = {each.number: each for each in Agentic(sessions=1, turns=2, forks=forks).requests(1)}
    assert [made[number].session for number in range(8)] == ["agentic-0"] + ["agentic-0.1"] * 3 + [
        "agentic-0.2"
    ] * 3 + ["agentic-0"]
    assert [made[number].after for number in range(8)] == [None, 0, 1, 2, 0, 4, 5, 0]
    assert [made[number].prompt[-1].tokens for number in range(1, 4)] == [11, 22, 22]
    assert made[1].pause == 0 < made[2].pause
    assert made[8].session == "agentic-0.3"
    assert made[8].after == 7


def test_forks_come_as_often_as_said() -> None:
    made = list(Agentic(sessions=100, turns=10, forks=Forks(probability=0.1, children=1)).requests(1))
    children = sum(request.phase == "fork" for request in made)
    assert children / (len(made) - children) == pytest.approx(0.1, rel=0.2)


def test_no_prompt_but_a_first_one_gets_too_long() -> None:
    forks = Forks(children=1, turns=50)
    made = list(Agentic(sessions=10, turns=100, max_prompt_tokens=80_000, forks=forks).requests(1))
    first = {request.session: request.number for request in reversed(made)}
    assert all(each.prompt_tokens <= 80_000 for each in made if each.number != first[each.session])


def test_what_is_wrong_with_forks_is_named_with_its_path() -> None:
    with pytest.raises(ValueError, match=r"dataset agentic: probability must be between 0 and 1, not 2.* `\$.forks`"):
        dataset("agentic", {"forks": {"probability": 2}})
