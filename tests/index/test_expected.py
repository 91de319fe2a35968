from array import array
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from index import Publisher, block_keys, root_key
from index.expected import Expectation, Expected, _Run

ONE, TWO, THREE = Publisher("a:1", 0), Publisher("a:1", 1), Publisher("b:1", 0)
TTL = 2.0
SIZES = (16, 64)


def keys(*contents: int, size: int = 16) -> "array[int]":
    """The chained keys of a prompt, of whose blocks each is told by one number."""
    tokens = [content for content in contents for _ in range(size)]
    return array("Q", block_keys(tokens, size, root_key("model", size)))


def expected(*placed: tuple[Publisher, "array[int]"]) -> tuple[Expected, list[Expectation]]:
    made = Expected(ttl=TTL)
    expectations = [made.placed(publisher, [prompt]) for publisher, prompt in placed]
    return made, [each for each in expectations if each is not None]


def runs(of: _Run) -> Iterable[_Run]:
    for child in of.children.values():
        yield child
        yield from runs(child)


def check(of: Expected) -> None:
    """The tree agrees with itself: who goes through a run ends with it or goes on, and no cut is without a reason."""
    for run in runs(of._root):
        assert run.parent.children[run.keys[0]] is run
        assert run.counts
        assert min(run.counts.values()) > 0
        onward = [child.counts for child in run.children.values()]
        for publisher, count in run.counts.items():
            assert sum(each.get(publisher, 0) for each in onward) <= count
        assert sum(run.counts.values()) == run.ends + sum(sum(each.values()) for each in onward)
        assert run.ends or len(run.children) > 1
    ends = [end for each in of._live for end in each.ends]
    assert sum(run.ends for run in runs(of._root)) == len(ends)


def test_a_prompt_that_was_looked_up_goes_on_from_there() -> None:
    made, _ = expected((ONE, keys(1, 2, 3, 4)), (TWO, keys(1, 2, 5)))
    prompt = keys(1, 2, 5, 6)
    made.match({16: prompt}, 0.0)
    made.placed(THREE, [prompt])
    check(made)
    assert made.match({16: prompt}, 0.0) == {ONE: 32, TWO: 48, THREE: 64}


def test_a_prompt_that_was_looked_up_starts_anew_where_that_has_gone() -> None:
    made, (first,) = expected((ONE, keys(1, 2)))
    prompt = keys(1, 2, 3)
    made.match({16: prompt}, 0.0)
    made.dropped(first)
    made.placed(TWO, [prompt])
    check(made)
    assert made.match({16: prompt}, 0.0) == {TWO: 48}


def test_a_prompt_that_was_looked_up_starts_anew_where_that_was_cut() -> None:
    made, _ = expected((ONE, keys(1, 2)))
    prompt = keys(1, 2, 3)
    made.match({16: prompt}, 0.0)
    made.placed(ONE, [keys(1, 5)])
    made.placed(TWO, [prompt])
    check(made)
    assert made.match({16: prompt}, 0.0) == {ONE: 32, TWO: 48}


def test_where_nothing_is_placed_nothing_is_expected() -> None:
    made, _ = expected()
    assert not made
    assert made.match({16: keys(1, 2, 3)}, 0.0) == {}
    assert made.match({}, 0.0) == {}


def test_a_prompt_is_expected_as_far_as_it_is_shared() -> None:
    made, _ = expected((ONE, keys(1, 2, 3, 4)))
    assert made.match({16: keys(1, 2, 3, 4)}, 0.0) == {ONE: 64}
    assert made.match({16: keys(1, 2, 3, 4, 5)}, 0.0) == {ONE: 64}
    assert made.match({16: keys(1, 2)}, 0.0) == {ONE: 32}
    assert made.match({16: keys(1, 2, 9, 4)}, 0.0) == {ONE: 32}
    assert made.match({16: keys(9, 2, 3, 4)}, 0.0) == {}


def test_of_several_requests_on_a_publisher_the_one_that_shares_most_counts() -> None:
    made, _ = expected((ONE, keys(1, 2)), (ONE, keys(1, 2, 3, 4)), (ONE, keys(1, 9)), (TWO, keys(1, 2, 3)))
    assert made.match({16: keys(1, 2, 3, 4, 5)}, 0.0) == {ONE: 64, TWO: 48}
    assert made.match({16: keys(1, 9, 9)}, 0.0) == {ONE: 32, TWO: 16}
    check(made)


def test_a_prompt_under_one_block_is_nothing() -> None:
    made, placed = expected((ONE, keys()))
    assert not placed
    assert not made
    assert made.match({16: keys()}, 0.0) == {}


def test_a_request_counts_until_the_time_to_live_after_its_first_byte() -> None:
    made, (placed,) = expected((ONE, keys(1, 2)))
    assert made.match({16: keys(1, 2)}, 1e6) == {ONE: 32}
    made.answered(placed, 1e6)
    made.answered(placed, 1e6 + 1)  # again: counts from the first time
    made.dropped(placed)  # it ended; its blocks are there
    assert made.match({16: keys(1, 2)}, 1e6 + TTL - 0.01) == {ONE: 32}
    assert len(made) == 1
    assert made.match({16: keys(1, 2)}, 1e6 + TTL) == {}
    assert not made


def test_a_request_that_ends_without_a_first_byte_is_forgotten_at_once() -> None:
    made, (placed, _) = expected((ONE, keys(1, 2, 3)), (TWO, keys(1, 2)))
    for _ in range(2):
        made.dropped(placed)
        assert made.match({16: keys(1, 2, 3)}, 0.0) == {TWO: 32}
    made.answered(placed, 0.0)
    assert made.match({16: keys(1, 2, 3)}, 0.0) == {TWO: 32}
    check(made)


def test_a_pod_that_leaves_is_forgotten_with_all_its_ranks_and_what_is_heard_of_them_later() -> None:
    made, placed = expected((ONE, keys(1, 2)), (TWO, keys(1, 2)), (THREE, keys(1)), (ONE, keys(3)))
    made.answered(placed[0], 0.0)
    made.forget("a:1")
    assert made.match({16: keys(1, 2)}, 0.0) == {THREE: 16}
    made.answered(placed[1], 0.0)
    made.dropped(placed[3])
    assert made.match({16: keys(1, 2)}, TTL) == {THREE: 16}
    assert len(made) == 1
    check(made)


def test_the_sequences_of_a_request_count_and_end_together() -> None:
    made = Expected(ttl=TTL)
    placed = made.placed(ONE, [keys(1, 2), keys(3), keys(), keys(1, 2)])
    assert placed is not None
    assert made.match({16: keys(1, 2)}, 0.0) == {ONE: 32}
    assert made.match({16: keys(3, 4)}, 0.0) == {ONE: 16}
    made.dropped(placed)
    assert list(runs(made._root)) == []


def test_of_several_block_sizes_the_longest_counts() -> None:
    made, _ = expected((ONE, keys(*range(9))), (ONE, keys(0, size=64)), (TWO, keys(0, 1, size=64)))
    prompts = {16: keys(*range(9)), 64: keys(0, 1, size=64)}
    assert made.match(prompts, 0.0) == {ONE: 144, TWO: 128}
    assert made.match(dict(reversed(prompts.items())), 0.0) == {ONE: 144, TWO: 128}


def test_what_is_left_of_many_prompts_is_one_run() -> None:
    made, placed = expected(*((ONE, keys(*range(length))) for length in range(1, 40)))
    assert len(list(runs(made._root))) == 39
    for each in placed[:-1]:
        made.dropped(each)
        check(made)
    (run,) = runs(made._root)
    assert run.keys == keys(*range(39))


def test_requests_that_begin_alike_share_one_run_and_a_lookup_follows_one_path() -> None:
    opening = tuple(range(1000))
    made, _ = expected(*((Publisher("a:1", n % 4), keys(*opening, 5000 + n)) for n in range(300)))
    assert len(list(runs(made._root))) == 301
    found = made.match({16: keys(*opening, 5007, 1)}, 0.0)
    assert found == {Publisher("a:1", n): 16 * (1001 if n == 3 else 1000) for n in range(4)}


def test_nothing_is_kept_of_what_has_ended() -> None:
    made = Expected(ttl=TTL)
    for number in range(1000):
        placed = made.placed(ONE, [keys(1, number)])
        assert placed is not None
        made.answered(placed, number * 0.1)
    assert len(made) == len(made._ending) == TTL / 0.1
    check(made)


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_keys_that_collide_break_nothing(seed: int, different: int) -> None:
    random = Random(seed)
    made, prompts, placed = Expected(ttl=TTL), [], []
    for _ in range(30):
        prompt = array("Q", [random.randrange(different) for _ in range(random.randrange(1, 9))])
        prompts.append(prompt)
        placed.append(made.placed(random.choice((ONE, TWO)), [prompt]))
        assert all(0 < blocks <= len(prompt) for blocks in made.match({1: prompt}, 0.0).values())
    random.shuffle(placed)
    for each in placed:
        assert each is not None
        made.dropped(each)
        made.match({1: random.choice(prompts)}, 0.0)
    assert list(runs(made._root)) == []
    assert not made


class Placed(NamedTuple):
    publisher: Publisher
    prompts: tuple[tuple[int, ...], ...]
    size: int
    expectation: Expectation | None


prompt = st.lists(st.integers(0, 2), max_size=8).map(tuple)


class Against(RuleBasedStateMachine):
    """A list of all that counts, which is looked through block by block."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = Expected(ttl=TTL)
        self.now = 0.0
        self.placed: list[Placed] = []
        self.until: dict[int, float] = {}
        self.over: set[int] = set()
        self.looked_up: tuple[tuple[int, ...], int, array[int]] | None = None

    @rule(
        publisher=st.sampled_from([ONE, TWO, THREE]),
        prompts=st.lists(prompt, max_size=2),
        size=st.sampled_from(SIZES),
        as_looked_up=st.booleans(),
    )
    def place(self, publisher: Publisher, prompts: list[tuple[int, ...]], size: int, as_looked_up: bool) -> None:
        chained = [keys(*each, size=size) for each in prompts]
        if as_looked_up and self.looked_up is not None:
            each, size, its_keys = self.looked_up
            prompts, chained = [each], [its_keys]
        made = self.expected.placed(publisher, chained)
        assert (made is None) == (not any(prompts))
        self.placed.append(Placed(publisher, tuple(prompts), size, made))

    @rule(number=st.integers(0, 20))
    def answer(self, number: int) -> None:
        if number < len(self.placed) and (made := self.placed[number].expectation) is not None:
            self.expected.answered(made, self.now)
            self.until.setdefault(number, self.now + TTL)

    @rule(number=st.integers(0, 20))
    def drop(self, number: int) -> None:
        if number < len(self.placed) and (made := self.placed[number].expectation) is not None:
            self.expected.dropped(made)
            if number not in self.until:
                self.over.add(number)

    @rule(pod=st.sampled_from(["a:1", "b:1"]))
    def forget(self, pod: str) -> None:
        self.expected.forget(pod)
        self.over |= {number for number, each in enumerate(self.placed) if each.publisher.pod == pod}

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(asked=prompt, size=st.sampled_from(SIZES))
    def look(self, asked: tuple[int, ...], size: int) -> None:
        found: dict[Publisher, int] = {}
        for number, each in enumerate(self.placed):
            if number in self.over or each.size != size or self.until.get(number, self.now + 1) <= self.now:
                continue
            for prompt in each.prompts:
                shared = 0
                while shared < min(len(prompt), len(asked)) and prompt[shared] == asked[shared]:
                    shared += 1
                if shared:
                    found[each.publisher] = max(found.get(each.publisher, 0), shared * size)
        self.looked_up = asked, size, keys(*asked, size=size)
        assert self.expected.match({size: self.looked_up[2]}, self.now) == found

    @invariant()
    def agrees_with_itself(self) -> None:
        check(self.expected)


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
