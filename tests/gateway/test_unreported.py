"""Pulls whose answers do not say what they brought, held against what the consumer counts."""

from gateway.unreported import Unreported, Verdict

NOTHING: Verdict[str] = Verdict()


def told(counts: list[float | None], pulls: dict[int, list[str]]) -> list[Verdict[str]]:
    """What each poll comes to, where so many pulls have answered before it."""
    books: Unreported[str] = Unreported()
    verdicts = []
    for number, count in enumerate(counts):
        for pair in pulls.get(number, []):
            books.answered(pair)
        verdicts.append(books.polled(count))
    return verdicts


def test_pulls_while_nothing_comes_from_anybody_have_failed() -> None:
    verdicts = told([5.0] * 6, {3: ["a", "b", "a"]})
    assert verdicts == [NOTHING] * 4 + [Verdict(failed=("a", "b")), NOTHING]


def test_what_was_counted_a_little_before_the_answer_or_after_it_is_no_failure() -> None:
    for came_with in (2, 3, 4):
        counts: list[float | None] = [5.0 if number < came_with else 9.0 for number in range(6)]
        assert all(not verdict.failed for verdict in told(counts, {3: ["a"]}))


def test_what_came_while_one_pair_only_pulled_is_its_own() -> None:
    assert told([0.0, 0.0, 0.0, 64.0, 64.0], {3: ["a", "a"]})[-1] == Verdict(succeeded=("a",))


def test_what_came_while_several_pulled_says_nothing_of_any_of_them() -> None:
    assert told([0.0, 0.0, 0.0, 64.0, 64.0, 64.0], {3: ["a"], 4: ["b"]})[4] == NOTHING
    assert told([0.0, 0.0, 0.0, 64.0, 64.0, 64.0], {2: ["b"], 3: ["a"]})[4] == NOTHING


def test_before_there_is_a_poll_from_before_the_pull_nothing_is_held_against_it() -> None:
    assert told([0.0, 0.0, 0.0], {0: ["a"]}) == [NOTHING] * 3


def test_a_pod_that_does_not_count_leaves_it_unknown_once() -> None:
    assert told([None, None], {0: ["a", "b", "a"]}) == [Verdict(unknown=("a", "b")), NOTHING]
    assert told([1.0, 1.0, None, 1.0, 1.0], {1: ["a"]})[2:] == [Verdict(unknown=("a",)), NOTHING, NOTHING]
