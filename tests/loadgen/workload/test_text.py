from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.text import WORDS, PieceCache, ids, words

SEEDS = st.integers(0, 2**64 - 1)
LENGTHS = st.integers(0, 300)


@given(SEEDS, LENGTHS, LENGTHS)
def test_a_shorter_text_is_the_beginning_of_a_longer_one(seed: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert words(seed, long).split()[:short] == words(seed, short).split()
    assert words(seed, long).startswith(words(seed, short))
    vocabulary = range(100, 50_000)
    assert ids(seed, long, vocabulary)[:short] == ids(seed, short, vocabulary)


@given(SEEDS, LENGTHS)
def test_there_are_as_many_words_as_tokens(seed: int, tokens: int) -> None:
    text = words(seed, tokens)
    assert len(text.split(" ")) == tokens + 1
    assert text.startswith(" ") or not tokens


def test_words_are_short_plain_and_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 400
    assert all(word[0] == " " and word[1:].isalpha() and word.islower() and len(word) <= 6 for word in WORDS)
    assert 4 < len(words(1, 10_000)) / 10_000 < 5


def test_seeds_are_other_texts() -> None:
    assert words(1, 20) != words(2, 20)
    assert ids(1, 20, range(1000)) != ids(2, 20, range(1000))


def test_texts_are_the_same_in_every_process() -> None:
    assert words(7, 5) == " head cover rest big no"
    assert ids(7, 5, range(1000, 100_000)) == [33059, 15934, 65442, 8171, 54052]


def test_ids_are_of_the_vocabulary() -> None:
    assert set(ids(3, 2_000, range(10, 20))) == set(range(10, 20))


def test_what_was_made_is_kept_up_to_a_number_of_tokens() -> None:
    made: list[tuple[int, int]] = []

    def make(seed: int, tokens: int) -> str:
        made.append((seed, tokens))
        return words(seed, tokens)

    cache = PieceCache(make, 100)
    assert cache(1, 60) == cache(1, 60) == words(1, 60)
    cache(2, 40)
    cache(1, 60)
    cache(3, 10)  # 2 was used least recently
    cache(1, 60)
    cache(2, 40)
    assert made == [(1, 60), (2, 40), (3, 10), (2, 40)]


def test_what_is_longer_than_the_limit_evicts_nothing() -> None:
    cache = PieceCache(words, 10)
    kept = cache(1, 10)
    assert cache(2, 11) == words(2, 11)
    assert cache(1, 10) is kept
