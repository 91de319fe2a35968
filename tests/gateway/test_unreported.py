"""Pulls whose answers do not say what they brought, held against what the consumer counts."""

from gateway.unreported import Unreported, Verdict

NOTHING: Verdict[str] = Verdict()


def told(counts: list[float | None], pulls: dict[int, list[str]]) -> list[Verdict[str]]:
    """What each poll comes to, one a second, where so many short pulls have answered before it."""
    return lasted(
        counts, {number: [(pair, number - 0.5, number - 0.4) for pair in each] for number, each in pulls.items()}
    )


def lasted(counts: list[float | None], pulls: dict[int, list[tuple[str, float, float]]]) -> list[Verdict[str]]:
    """Likewise, where pulls were asked for and over when they say; the answers may have been longer."""
    books: Unreported[str] = Unreported()
    verdicts = []
    for number, count in enumerate(counts):
        for pair, since, until in pulls.get(number, []):
            books.answered(pair, since, until)
        verdicts.append(books.polled(count, number))
    return verdicts


def test_pulls_while_nothing_comes_from_anybody_have_failed() -> None:
    verdicts = told([5.0] * 6, {3: ["a", "b", "a"]})
    assert verdicts == [NOTHING] * 4 + [Verdict(failed=("a", "b")), NOTHING]


def test_what_was_counted_a_little_before_the_answer_or_after_it_is_no_failure() -> None:
    for came_with in (2, 3, 4):
        counts: list[float | None] = [5.0 if number < came_with else 9.0 for number in range(6)]
        assert all(not verdict.failed for verdict in lasted(counts, {3: [("a", 1.5, 2.5)]}))


def test_what_came_long_before_the_end_of_an_answer_is_no_failure() -> None:
    counts: list[float | None] = [5.0, 5.0, 9.0, *[9.0] * 9]
    for until in (1.6, 2.5, 9.5):  # its first byte, which may be the last as well
        assert all(verdict == NOTHING for verdict in lasted(counts, {10: [("a", 1.5, until)]}))


def test_a_long_answer_for_which_nothing_came_has_failed_whatever_came_before_and_after() -> None:
    counts: list[float | None] = [5.0, 9.0, *[9.0] * 8, 9.0, 12.0]
    assert lasted(counts, {10: [("a", 1.5, 1.6)]})[11] == Verdict(failed=("a",))
    assert lasted([*counts[:6], *[20.0] * 6], {10: [("a", 1.5, 1.6)]})[11] == Verdict(failed=("a",))
    assert lasted([*counts[:6], *[20.0] * 6], {10: [("a", 1.5, 5.6)]})[11] == NOTHING


def test_of_a_pull_during_which_more_came_than_is_remembered_nothing_is_said() -> None:
    rising: list[float | None] = [float(number) for number in range(300)]
    counts = [*rising, *[300.0] * 10]
    assert lasted(counts, {305: [("a", 20.5, 20.6)]})[306] == NOTHING
    assert lasted([*[0.0] * 10, *counts[10:]], {305: [("a", 303.5, 304.6)]})[306] == Verdict(failed=("a",))


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
