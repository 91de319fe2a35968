"""What of an answer with status 200 is an engine's failure."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine_errors import HELD_BYTES, Finding, at_end, judge, suspicious


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


def text(said: str, finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": said, "finish_reason": finish}],
    }


def message(content: str | None, finish: str, **more: Any) -> bytes:
    said = {"role": "assistant", "content": content, "tool_calls": [], **more}
    return json.dumps({"object": "chat.completion", "choices": [{"message": said, "finish_reason": finish}]}).encode()


DONE = b"data: [DONE]\n\n"
ROLE = event(chat({"role": "assistant", "content": ""}))
OTHER_ROLE = event(chat({"role": "assistant"}))
FAULT = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
CLIENTS = {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}

FAILURES: list[tuple[bytes, Finding]] = [
    (event({"error": FAULT}) + DONE, "error"),
    (event({"error": {"message": "x"}}), "error"),
    (event({"error": "x"}), "error"),
    (event({"object": "error", "message": "x", "code": 500}), "error"),
    (b"event: error\n" + event({"type": "error", "error": {"type": "internal_error", "message": "x"}}), "error"),
    (ROLE + event({"error": FAULT}) + DONE, "error"),
    (ROLE.replace(b"\n", b"\r\n") + event({"error": FAULT}), "error"),
    (json.dumps({"error": FAULT}).encode(), "error"),
    (json.dumps({"object": "error", "message": "x", "type": "x", "param": None, "code": 503}).encode(), "error"),
    (event(text("", "abort")) + DONE, "finish_abort"),
    (event(text("", "error")) + DONE, "finish_error"),
    (ROLE + event(chat({}, "abort")) + DONE, "finish_abort"),
    (ROLE + event(chat({"content": ""}, "error")), "finish_error"),
    (message(None, "abort"), "finish_abort"),
    (message("", "error"), "finish_error"),
    (json.dumps(text("", "abort")).encode(), "finish_abort"),
    (b"", "empty"),
    (DONE, "empty"),
    (ROLE + DONE, "empty"),
    (ROLE, "empty"),
    (OTHER_ROLE + DONE, "empty"),
    (OTHER_ROLE + event(chat({}, "abort")), "finish_abort"),
]
ANSWERS = [
    event(text("Hello")),
    event(text("", "stop")) + DONE,  # a model may say nothing
    event(text("He", "abort")),
    ROLE + event(chat({"content": "He"})),
    ROLE + event(chat({"content": "He"}, "abort")),
    ROLE + event(chat({"reasoning": "Hm"})),
    ROLE + event(chat({"tool_calls": [{"index": 0}]})),
    ROLE + event(chat({}, "stop")) + DONE,
    event({"error": CLIENTS}),
    event({"object": "error", "code": 404}),
    event({"error": None, "type": "response.created"}),
    event(text('an "error", an "abort" and a "role"')),
    event({"type": "message_start", "message": {"role": "assistant", "content": []}}),
    b": ping\n\n",
    b'data: no JSON with "error"\n\n',
    b'data: "error"\n\n',
    json.dumps({"error": CLIENTS}).encode(),
    json.dumps({"error": None, "output": []}).encode(),
    message("Hello", "stop"),
    message("", "stop"),
    message("He", "abort"),
    message(None, "abort", refusal="no"),
    message('"error"', "stop"),
    b'{"object":"list","data":[]}',
    b'{"error":null,"choices":[{"text":"","finish_reason":null}]}',
    b"[" * 4000 + b'"error"',
    b'"error"',
    b"plain text",
    b"\x1f\x8b\x08 gzip",
    ROLE + b"data: cut",
]


@pytest.mark.parametrize(("answer", "finding"), FAILURES)
def test_a_failure_is_told_from_the_whole_answer(answer: bytes, finding: Finding) -> None:
    assert suspicious(answer)
    assert judge(answer, whole=True) == finding


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (event(text("Hi")) + event(text("", "abort")) + DONE, "finish_abort"),
        (event(text("Hi", "error")), "finish_error"),
        (b'cut":"off"}\n\n' + event({"error": FAULT}) + DONE, "error"),
        (message("Hi", "abort"), "finish_abort"),
        (event({"error": CLIENTS}) + DONE, None),
        (event(text("Hi")) + event(text("", "stop")) + DONE, None),
        (event(text('an "error", an "abort"')), None),
        (b"", None),
    ],
)
def test_a_failure_after_content_is_read_from_the_end(tail: bytes, reason: Finding) -> None:
    assert at_end(tail) == reason


@pytest.mark.parametrize("answer", ANSWERS)
def test_anything_else_is_an_answer(answer: bytes) -> None:
    assert judge(answer, whole=True) is None


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a.startswith(b"data: {") and b'"role"' not in a[:200]][:3])
def test_content_at_once_is_not_even_looked_at(answer: bytes) -> None:
    assert not suspicious(answer) or b"abort" in answer


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_with_content_is_not_held_for_more(answer: bytes) -> None:
    if answer.startswith(b"data:") and answer.endswith(b"\n\n"):
        assert judge(answer, whole=False) is None


@pytest.mark.parametrize("beginning", [ROLE, ROLE[:40], ROLE + ROLE, ROLE + b"data: {", b'{"error":', ROLE[:-1]])
def test_what_cannot_be_told_yet_waits_for_more(beginning: bytes) -> None:
    assert judge(beginning, whole=False) == "more"


def test_no_more_than_a_bound_is_held() -> None:
    held = ROLE * (HELD_BYTES // len(ROLE) + 1)
    assert judge(held, whole=False) is None
    assert judge(held[: HELD_BYTES - 1], whole=False) == "more"


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"data: ", b'{"error":', ROLE, b'data: {"choices":']), st.booleans()
)
def test_nothing_is_a_fault_here(rest: bytes, start: bytes, whole: bool) -> None:
    judge(start + rest, whole=whole)
    at_end(start + rest)
    suspicious(start + rest)
