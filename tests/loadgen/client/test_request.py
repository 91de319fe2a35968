from typing import Any

import msgspec
import pytest

from loadgen.client.events import Real
from loadgen.client.request import Composer, Shape, Texts
from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece

SYSTEM, QUESTION = Piece(1, 5, "system"), Piece(2, 3)
FIRST = Request(number=0, session="s", prompt=(SYSTEM, QUESTION), output_tokens=4)
SECOND = Request(
    number=1, session="s", prompt=(*FIRST.prompt, answer_piece(0, 4), Piece(3, 2)), output_tokens=6, after=0
)
TEXTS = Texts.of(range(1000, 2000))


def composer(**shape: Any) -> Composer:
    return Composer(Shape(model="m", **shape), TEXTS, base="/v1", authority="host:1", run="run")


def body(made: Composer, request: Request) -> Any:
    return msgspec.json.decode(made.body(request))


def test_ids_are_as_many_as_the_prompt_has_tokens_and_a_later_prompt_begins_with_an_earlier_one() -> None:
    made = composer()
    first, second = body(made, FIRST), body(made, SECOND)
    assert (len(first["prompt"]), len(second["prompt"])) == (8, 14)
    assert second["prompt"][:8] == first["prompt"]
    assert {key: first[key] for key in first if key != "prompt"} == {
        "model": "m",
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_text_has_a_word_for_each_token() -> None:
    assert len(body(composer(prompts="text"), FIRST)["prompt"].split()) == 8


def test_a_chat_has_a_message_for_each_run_of_a_role() -> None:
    request = msgspec.structs.replace(SECOND, prompt=(SYSTEM, Piece(9, 1, "system"), *SECOND.prompt[1:]))
    messages = body(composer(api="chat"), request)["messages"]
    assert [(m["role"], len(m["content"].split())) for m in messages] == [
        ("system", 6),
        ("user", 3),
        ("assistant", 4),
        ("user", 2),
    ]


def test_the_real_answer_takes_the_place_of_the_made_up_one() -> None:
    made = composer(api="chat", history="real")
    list(made.watched([FIRST, SECOND]))
    assert (made.wants_answer(FIRST), made.wants_answer(SECOND)) == (True, False)
    assert made.waits(SECOND)
    made.answered(FIRST, Real("as it was said", []))
    assert not made.waits(SECOND)
    assert body(made, SECOND)["messages"][2] == {"role": "assistant", "content": "as it was said"}
    assert not made.wants_answer(FIRST)  # it is forgotten when no other prompt has it


def test_without_a_real_answer_the_made_up_one_stays() -> None:
    made = composer(api="chat", history="real")
    list(made.watched([FIRST, SECOND]))
    made.answered(FIRST, None)
    assert len(body(made, SECOND)["messages"][2]["content"].split()) == 4


def test_real_ids_are_asked_for_where_prompts_are_ids() -> None:
    made = composer(history="real")
    list(made.watched([FIRST, SECOND]))
    assert body(made, FIRST)["return_token_ids"] is True
    made.answered(FIRST, Real("x", [5, 6, 7]))
    assert body(made, SECOND)["prompt"][8:11] == [5, 6, 7]


def test_a_head_names_the_request_and_its_conversation_and_nothing_of_them_ends_it() -> None:
    request = msgspec.structs.replace(FIRST, session="a\r\nX-Evil: 1")
    head = composer(headers={"Authorization": "Bearer k"}).head(request, 12).decode()
    assert head == (
        "POST /v1/completions HTTP/1.1\r\nHost: host:1\r\nContent-Type: application/json\r\n"
        "Accept: text/event-stream\r\nAuthorization: Bearer k\r\nX-Request-ID: run-0\r\n"
        "X-Correlation-ID: a__X-Evil:_1\r\nContent-Length: 12\r\n\r\n"
    )


def test_more_fields_come_last() -> None:
    made = body(composer(extra={"temperature": 0, "max_tokens": 1}, ignore_eos=False), FIRST)
    assert (made["temperature"], made["max_tokens"], "ignore_eos" in made) == (0, 1, False)


def test_a_header_of_two_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="no header"):
        Shape(model="m", headers={"X": "1\r\nY: 2"})
