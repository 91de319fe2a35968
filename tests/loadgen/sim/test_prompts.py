import pytest
from msgspec.structs import replace

from gateway.tokens import TokenIds
from index import block_keys, root_key
from loadgen.sim import prompts as module
from loadgen.sim.prompts import Prompts
from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece, answer_seed


def request(*pieces: Piece, output: int = 5, number: int = 0) -> Request:
    return Request(number=number, session="s", prompt=pieces, output_tokens=output)


def test_what_begins_alike_is_alike_however_long_it_is() -> None:
    longer_first, shorter_first = Prompts("m", 4), Prompts("m", 4)
    long, short = request(Piece(7, 1000)), request(Piece(7, 10))
    assert longer_first.prompt(long)[:10] == longer_first.prompt(short)
    assert shorter_first.prompt(short) == longer_first.prompt(long)[:10]
    assert shorter_first.prompt(long) == longer_first.prompt(long)


def test_a_prompt_is_its_pieces_one_behind_the_other() -> None:
    prompts = Prompts("m", 4)
    both = prompts.prompt(request(Piece(1, 6), Piece(2, 3)))
    assert both == prompts.prompt(request(Piece(1, 6))) + prompts.prompt(request(Piece(2, 3)))


@pytest.mark.parametrize("tokens", [1, 3, 4, 11])
def test_keys_are_those_of_the_prompt_and_its_answer(tokens: int) -> None:
    prompts = Prompts("m", 4)
    asked = request(Piece(1, tokens), output=6)
    ids, keys = prompts.whole(asked, prompts.prompt(asked))
    assert len(ids) == tokens + 6
    assert keys == block_keys(ids, 4, root_key("m", 4)) == list(TokenIds("I", ids).keys("m", 4, None))


def test_the_next_turn_begins_with_the_answer() -> None:
    prompts = Prompts("m", 4)
    first = request(Piece(1, 9), output=6, number=3)
    answer = answer_seed(3)
    ids, _ = prompts.whole(first, prompts.prompt(first))
    assert prompts.prompt(request(Piece(1, 9), Piece(answer, 6), Piece(2, 4), number=4))[:15] == TokenIds("I", ids)


def test_pieces_that_are_forgotten_come_again_and_may_grow_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_TOKENS", 100)
    prompts, fresh = Prompts("m", 4), Prompts("m", 4)
    for seed, tokens in [(1, 40), (2, 40), (1, 90), (3, 40), (2, 90), (1, 10), (2, 500), (1, 90)]:
        assert prompts.prompt(request(Piece(seed, tokens))) == Prompts("m", 4).prompt(request(Piece(seed, tokens)))
        assert prompts._kept == sum(map(len, prompts._known.values()))
    assert fresh.prompt(request(Piece(2, 500)))[:90] == prompts.prompt(request(Piece(2, 90)))


def followed(prompts: Prompts, followers: int) -> Request:
    """A request that so many go on from, and what their prompts begin with."""
    asked = request(Piece(1, 9), Piece(2, 4), output=6, number=3)
    prompts.whole(asked, prompts.prompt(asked), followers=followers)
    return replace(asked, prompt=(*asked.prompt, answer_piece(3, 6)))


@pytest.mark.parametrize("new", [1, 3, 30])
def test_who_goes_on_from_an_answer_gets_what_is_made_of_all_pieces(new: int) -> None:
    prompts, fresh = Prompts("m", 4), Prompts("m", 4)
    said = followed(prompts, 2)
    for number in (4, 5):
        turn = replace(said, number=number, prompt=(*said.prompt, Piece(number, new)), after=3)
        known, made = prompts.prompt(turn), fresh.prompt(turn)
        assert known == made
        assert known.keys("m", 4, None) == made.keys("m", 4, None) == TokenIds("I", made).keys("m", 4, None)
        assert prompts.whole(turn, known) == fresh.whole(turn, made)


def test_what_was_said_is_kept_until_all_have_gone_on_from_it() -> None:
    prompts = Prompts("m", 4)
    said = followed(prompts, 2)
    kept = []
    for number in (4, 5):
        prompts.prompt(replace(said, number=number, prompt=said.prompt, after=3))
        kept.append(prompts._kept)
    assert kept[0] - kept[1] == 9 + 4 + 6
    assert not prompts._pieces
    assert not prompts._followers


def test_who_says_something_else_than_was_said_gets_what_it_says() -> None:
    prompts = Prompts("m", 4)
    followed(prompts, 1)
    other = replace(request(Piece(1, 9), Piece(8, 20), number=4), after=3)
    assert prompts.prompt(other) == Prompts("m", 4).prompt(other)
    assert prompts.prompt(replace(other, after=77)) == Prompts("m", 4).prompt(other)


def test_what_was_said_may_be_forgotten_before_anybody_goes_on_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_TOKENS", 30)
    prompts = Prompts("m", 4)
    said = followed(prompts, 1)
    prompts.prompt(request(Piece(5, 25)))
    assert not prompts._pieces
    turn = replace(said, number=4, after=3)
    assert prompts.prompt(turn) == Prompts("m", 4).prompt(turn)
