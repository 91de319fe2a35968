from gateway.tokens import TokenIds, TokenMemo

BOUND = 12_000


def tokens(count: int) -> TokenIds:
    return TokenIds("I", range(count))


def held(memo: TokenMemo, *keys: bytes) -> list[bool]:
    return [memo.get(key) is not None for key in keys]


def test_what_was_put_is_got_and_nothing_else() -> None:
    memo = TokenMemo(BOUND)
    memo.put(b"a", tokens(3))
    assert memo.get(b"a") == tokens(3)
    assert memo.get(b"b") is None


def test_what_is_cleared_takes_no_room() -> None:
    memo = TokenMemo(BOUND)
    memo.put(b"a", tokens(10_000))
    memo.clear()
    assert held(memo, b"a") == [False]
    memo.put(b"b", tokens(5000))
    memo.put(b"c", tokens(5000))
    assert held(memo, b"b", b"c") == [True, True]


def test_the_bound_is_of_tokens_and_the_coldest_goes_first() -> None:
    memo = TokenMemo(BOUND)
    for key in (b"a", b"b", b"c"):
        memo.put(key, tokens(3000))
    assert held(memo, b"a") == [True]
    memo.put(b"d", tokens(3000))
    assert held(memo, b"a", b"b", b"c", b"d") == [True, False, True, True]


def test_what_is_put_again_is_counted_once() -> None:
    memo = TokenMemo(BOUND)
    for _ in range(5):
        memo.put(b"a", tokens(4800))
    memo.put(b"b", tokens(4800))
    assert held(memo, b"a", b"b") == [True, True]
    memo.put(b"a", tokens(6000))
    assert memo.get(b"a") == tokens(6000)
    assert held(memo, b"b") == [False]


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    memo = TokenMemo(BOUND)
    memo.put(b"large", tokens(BOUND + 1))
    assert held(memo, b"large") == [False]
    memo.put(b"next", tokens(BOUND * 7 // 8))
    assert held(memo, b"next") == [True]


def test_short_entries_are_bounded_in_number() -> None:
    memo = TokenMemo(BOUND)
    keys = [str(number).encode() for number in range(BOUND)]
    for key in keys:
        memo.put(key, tokens(0))
    assert 50 < sum(held(memo, *keys)) < 200


def test_a_smaller_bound_is_kept_at_once_and_the_coldest_go() -> None:
    memo = TokenMemo(BOUND)
    for key in (b"a", b"b", b"c"):
        memo.put(key, tokens(BOUND // 4))
    memo.reconfigure(BOUND // 2)
    assert held(memo, b"a", b"b", b"c") == [False, False, True]
    memo.reconfigure(BOUND)
    memo.put(b"d", tokens(BOUND // 4))
    assert held(memo, b"c", b"d") == [True, True]
