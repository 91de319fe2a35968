import json

import pytest

from loadgen.client.events import Events
from loadgen.client.failures import Disconnected, Failure, Unreadable

DONE = b"data: [DONE]\n\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":'
    b'{"cached_tokens":4}}}\n\n'
)


def text(word: str, finish: str | None = None) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"text": word, "finish_reason": finish}]}).encode()


def said(word: str) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": word}}]}).encode()


def fed(*pieces: bytes, keep: bool = False) -> Events:
    events = Events(keep=keep)
    for at, piece in enumerate(pieces):
        events.feed(piece, float(at))
    return events


def test_each_event_with_a_token_has_its_time_and_the_last_words_have_none() -> None:
    events = fed(text("a"), text("b"), text("c", "length"), USAGE, DONE)
    events.seal()
    assert events.times == [0.0, 1.0, 2.0]
    assert events.usage is not None
    assert (events.usage.completion_tokens, events.usage.cached_tokens) == (3, 4)


def test_a_role_is_no_token() -> None:
    events = fed(ROLE, said("a"), said("b"), DONE)
    events.seal()
    assert events.times == [1.0, 2.0]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_are_tokens(field: str) -> None:
    assert fed(ROLE, b'data: {"choices":[{"delta":{"%b":"hm"}}]}\n\n' % field.encode()).times == [1.0]


def test_a_comment_is_no_token() -> None:
    events = fed(b": ping\n\n", text("a"), b": ping\n\n", text("b") + b": ping\n\n", DONE)
    events.seal()
    assert events.times == [1.0, 3.0]


def test_events_that_arrive_together_have_one_time_each() -> None:
    events = fed(text("a") + text("b"), text("c") + USAGE + DONE)
    events.seal()
    assert events.times == [0.0, 0.0, 1.0]


def test_an_event_has_the_time_of_its_end_however_it_is_cut() -> None:
    whole = text("a") + text("b") + USAGE + DONE
    for cut in range(1, len(whole)):
        events = fed(whole[:cut], whole[cut:])
        events.seal()
        assert events.times == [float(cut < len(text("a"))), float(cut < len(text("a") + text("b")))]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_lines_may_end_as_in_http(size: int) -> None:
    whole = (text("a") + text("b") + DONE).replace(b"\n", b"\r\n")
    events = fed(*[whole[i : i + size] for i in range(0, len(whole), size)])
    events.seal()
    assert len(events.times) == 2


def test_an_empty_end_is_no_token_where_the_usage_says_so() -> None:
    events = fed(
        said("a"), said("b"), said("c"), b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', USAGE, DONE
    )
    events.seal()
    assert events.times == [0.0, 1.0, 2.0]


def test_an_error_inside_of_a_stream_fails_it() -> None:
    events = fed(text("a"), b'data: {"error":{"message":"no memory","code":500}}\n\n', DONE)
    with pytest.raises(Failure, match="no memory") as failure:
        events.seal()
    assert failure.value.kind == "error_event"
    assert events.times == [0.0]


def test_an_engine_that_gives_up_fails_a_stream() -> None:
    with pytest.raises(Failure, match="'abort'") as failure:
        fed(text("a"), text("", "abort"), DONE).seal()
    assert failure.value.kind == "aborted"


def test_a_stream_without_its_end_marker_is_not_whole() -> None:
    with pytest.raises(Disconnected):
        fed(text("a", "stop")).seal()


def test_what_is_no_json_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="no chunk"):
        fed(b"data: {nonsense\n\n")
    with pytest.raises(Unreadable):
        fed(text("a"), b"data: nonsense\n\n").seal()


def test_an_endless_event_is_not_kept() -> None:
    with pytest.raises(Unreadable, match="more than"):
        fed(b"data: " + b"x" * (5 << 20))


def test_what_was_really_said_is_known_where_it_is_kept() -> None:
    ids = b'data: {"choices":[{"text":"!","token_ids":[7,8]}]}\n\n'
    events = fed(b": ping\n\n" + text("Hi "), text("there"), ids, USAGE, DONE, keep=True)
    events.seal()
    assert events.real() == ("Hi there!", [7, 8])
