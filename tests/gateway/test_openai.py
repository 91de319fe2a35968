import json
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from gateway.errors import BodyTooLarge, Draining, GatewayError, ModelNotFound, PodTimeout, RequestError
from gateway.openai import Peek, Usage, error_body, peek, usage

RAW_FIELDS = tuple(f.name for f in msgspec.structs.fields(Peek) if f.default is UNSET)


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        peek(body)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


# --- peek: what is read


def test_the_fields_that_decide_something_are_read() -> None:
    ask = peek(
        b'{"model":"m","stream":true,"n":2,"best_of":3,"use_beam_search":false,"cache_salt":"s","temperature":0.5}'
    )
    assert (ask.model, ask.stream, ask.n, ask.best_of, ask.use_beam_search, ask.cache_salt) == (
        "m",
        True,
        2,
        3,
        False,
        "s",
    )


def test_an_empty_object_asks_for_nothing() -> None:
    assert peek(b"{}") == Peek()
    assert peek(b" {\n}\t") == Peek()


def test_null_is_the_same_as_absent_for_what_is_decoded() -> None:
    nulls = b'{"model":null,"stream":null,"n":null,"best_of":null,"use_beam_search":null,"cache_salt":null}'
    assert peek(nulls) == Peek()


@pytest.mark.parametrize("field", RAW_FIELDS)
@pytest.mark.parametrize("value", [b"null", b'"text"', b"[1, 2]", b'{"a": [{}]}', b"-1.5e3", b"true"])
def test_the_rest_is_kept_as_the_bytes_that_came(field: str, value: bytes) -> None:
    ask = peek(b'{"model":"m", "%b" : %b }' % (field.encode(), value))
    raw = getattr(ask, field)
    assert isinstance(raw, Raw)
    assert bytes(raw) == value


def test_what_a_prompt_depends_on_is_among_the_kept() -> None:
    assert {"prompt", "messages", "tools", "documents", "chat_template_kwargs"} <= set(RAW_FIELDS)


def test_unknown_fields_of_any_type_are_nobodys_business() -> None:
    assert peek(b'{"logit_bias":{"1":2},"x":[[[]]],"y":null,"stream_options":{"model":7}}') == Peek()


def test_the_last_of_duplicate_keys_wins_as_it_does_in_the_engine() -> None:
    ask = peek(b'{"model":"a","prompt":[1],"model":"b","prompt":[2]}')
    assert ask.model == "b"
    assert isinstance(ask.prompt, Raw)
    assert bytes(ask.prompt) == b"[2]"


def test_a_key_that_is_written_with_escapes_is_the_same_key() -> None:
    assert peek(b'{"\\u006dodel":"m"}').model == "m"


def test_text_comes_out_of_its_escapes() -> None:
    assert peek(b'{"model":"a\\u00e9\\n\\ud83d\\ude00\\u0000","cache_salt":"\\"}{"}').model == "aé\n😀\0"


def test_a_body_of_5_mb_is_peeked_at_in_passing() -> None:
    text = ("word \\n" * 1_000_000)[: 5 * 2**20]
    body = b'{"messages":[{"role":"user","content":"%b"}],"model":"m"}' % text.rstrip("\\").encode()
    began = time.perf_counter()
    ask = peek(body)
    assert time.perf_counter() - began < 1.0
    assert ask.model == "m"
    assert isinstance(ask.messages, Raw)
    assert len(bytes(ask.messages)) > 5_000_000


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["model", "cache_salt", "other"]), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_any_text_is_read_as_the_client_wrote_it(fields: dict[str, str]) -> None:
    for ascii_only in (True, False):
        ask = peek(json.dumps(fields, ensure_ascii=ascii_only).encode())
        assert (ask.model, ask.cache_salt) == (fields.get("model"), fields.get("cache_salt"))


# --- peek: how many sequences


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        (b"{}", 1),
        (b'{"n":null,"best_of":null}', 1),
        (b'{"n":0}', 1),
        (b'{"n":-3}', 1),
        (b'{"n":4}', 4),
        (b'{"n":2,"best_of":5}', 5),
        (b'{"n":5,"best_of":2}', 5),
        (b'{"use_beam_search":true}', 2),
        (b'{"use_beam_search":true,"n":3}', 3),
        (b'{"use_beam_search":false}', 1),
    ],
)
def test_the_sequences_of_a_prompt_are_counted(body: bytes, sequences: int) -> None:
    assert peek(body).sequences == sequences


# --- peek: what is refused


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":1}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"stream":1}', "stream"),
        (b'{"stream":"true"}', "stream"),
        (b'{"n":"2"}', "n"),
        (b'{"n":2.5}', "n"),
        (b'{"n":true}', "n"),
        (b'{"best_of":{}}', "best_of"),
        (b'{"use_beam_search":0}', "use_beam_search"),
        (b'{"cache_salt":5}', "cache_salt"),
        (b'{"a.b`":1,"prompt":[[]],"model":{}}', "model"),
    ],
)
def test_a_wrong_type_is_refused_with_the_name_of_its_field(body: bytes, param: str) -> None:
    error = refused(body)
    assert (error.code, error.param) == ("invalid_value", param)
    assert error.message.startswith(f"{param}: Expected ")


@pytest.mark.parametrize("body", [b"[]", b'[{"model":"m"}]', b"null", b"1", b'"text"', b"true"])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    error = refused(body)
    assert (error.message, error.code, error.param) == ("The body must be a JSON object.", "invalid_body", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"model=m",
        b'{"model":"m"',
        b'{"model":"m"} {}',
        b'{"model":"m",}',
        b"{'model':'m'}",
        b'{"prompt":[1,}',
        b'{"prompt":tru}',
        b'{"x":NaN}',
        b'{"x":01}',
        b'{"model":"a\nb"}',
        b' \xef\xbb\xbf{"model":"m"}',
        b'{"model":"\\ud800"}',
        '{"model":"m"}'.encode("utf-16"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    error = refused(body)
    assert (error.code, error.param) == ("invalid_json", None)
    assert error.message.startswith("The body is not valid JSON: ")


def test_a_byte_order_mark_is_read_past_as_engines_do() -> None:
    assert peek(b'\xef\xbb\xbf{"model":"m"}').model == "m"


@pytest.mark.parametrize("field", [b"model", b"cache_salt"])
def test_invalid_utf_8_in_what_is_decoded_is_refused(field: bytes) -> None:
    assert refused(b'{"%b":"\xff"}' % field).code == "invalid_json"


def test_invalid_utf_8_in_what_is_only_kept_is_left_to_the_engine() -> None:
    ask = peek(b'{"prompt":"\xff"}')
    assert isinstance(ask.prompt, Raw)
    assert bytes(ask.prompt) == b'"\xff"'


@pytest.mark.parametrize("field", [b"messages", b"unknown"])
@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_nesting_without_an_end_is_refused(field: bytes, bracket: bytes) -> None:
    assert refused(b'{"%b":' % field + bracket * 200_000).code == "invalid_json"


@settings(deadline=None)
@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda junk: b'{"model":' + junk + b"}"))
def test_no_bytes_end_in_anything_but_a_peek_or_a_refusal(body: bytes) -> None:
    try:
        peek(body)
    except RequestError as error:
        json.loads(error_body(error))


# --- usage

JSON_ANSWER = (
    b'{"id":"c","choices":[{"text":"hello"}],"usage":{"prompt_tokens":2053,"total_tokens":2060,"completion_tokens":7,'
    b'"prompt_tokens_details":{"cached_tokens":2048}}}'
)
SSE_ANSWER = [
    b'data: {"choices":[{"delta":{"content":"hel"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n',
    b'data: {"usage":{"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}}\n\n',
    b"data: [DONE]\n\n",
]


def test_the_counts_of_a_json_answer_are_read() -> None:
    assert usage([JSON_ANSWER]) == Usage(prompt=2053, completion=7, cached=2048)


def test_the_counts_of_a_stream_are_read_from_its_end() -> None:
    assert usage(SSE_ANSWER) == Usage(prompt=9, completion=2, cached=0)
    assert usage(SSE_ANSWER[-2:]) == Usage(prompt=9, completion=2, cached=0)


@settings(deadline=None)
@given(st.integers(0, len(JSON_ANSWER)), st.integers(0, len(JSON_ANSWER)))
def test_it_does_not_matter_where_the_chunks_are_cut(one: int, other: int) -> None:
    first, second = sorted((one, other))
    chunks = [JSON_ANSWER[:first], JSON_ANSWER[first:second], JSON_ANSWER[second:]]
    assert usage(chunks) == Usage(prompt=2053, completion=7, cached=2048)


def test_of_counts_that_are_told_again_and_again_the_last_is_taken() -> None:
    chunks = [b'data: {"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n' % n for n in range(1, 6)]
    assert usage(chunks) == Usage(prompt=9, completion=5)


@pytest.mark.parametrize(
    "tail",
    [
        [],
        [b""],
        [b"data: [DONE]\n\n"],
        [b'{"choices":[]}'],
        [b'{"usage":null}'],
        [b'{"usage":{"prompt_tokens":null,"prompt_tokens_details":null}}'],
        [b'{"error":{"message":"no"}}'],
        [b"\xff\x00\x1f\x8b"],
    ],
)
def test_an_answer_without_counts_has_none(tail: list[bytes]) -> None:
    assert usage(tail) == Usage(None, None, None)


def test_counts_that_are_only_told_in_part_are_taken_in_part() -> None:
    assert usage([b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}']) == Usage(prompt=9)


def test_a_name_that_only_begins_alike_is_another() -> None:
    assert usage([b'{"prompt_tokens_details":{"x":1},"num_cached_tokens":3,"cached_tokens_total":4}']) == Usage()


IMITATION = '{"usage": {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3}}'


@pytest.mark.parametrize(
    "text", [IMITATION, IMITATION[1:], "\\" + IMITATION, json.dumps(IMITATION), "\\" * 5 + IMITATION]
)
def test_text_that_a_model_generates_is_not_taken_for_counts(text: str) -> None:
    said = json.dumps({"choices": [{"delta": {"content": text, "tool_calls": [{"arguments": text}]}}]}).encode()
    assert usage([b"data: " + said + b"\n\n"]) == Usage()
    assert usage([said, b'{"usage":{"prompt_tokens":9}}']) == Usage(prompt=9)
    assert usage([b'{"usage":{"prompt_tokens":9}}', said]) == Usage(prompt=9)


@settings(deadline=None)
@given(st.text(), st.integers(0, 200))
def test_no_generated_text_is_taken_for_counts_wherever_the_tail_begins(text: str, cut: int) -> None:
    said = json.dumps({"text": text + IMITATION + text}).encode()
    assert usage([said[cut:]]) == Usage()


def test_text_that_ends_in_a_backslash_hides_nothing() -> None:
    said = json.dumps({"text": "\\", "usage": {"prompt_tokens": 9}}).encode()
    assert usage([said]) == Usage(prompt=9)


# --- error_body


@pytest.mark.parametrize(
    ("error", "type_", "param"),
    [
        (RequestError("m", code="c", param="model"), "invalid_request_error", "model"),
        (ModelNotFound("m", code="c", param="model"), "invalid_request_error", "model"),
        (BodyTooLarge("m", code="c"), "invalid_request_error", None),
        (Draining("m", code="c"), "service_unavailable_error", None),
        (PodTimeout("m", code="c"), "timeout_error", None),
        (GatewayError("m", code="c"), "server_error", None),
    ],
)
def test_an_error_has_the_shape_that_openai_clients_parse(error: GatewayError, type_: str, param: str | None) -> None:
    assert json.loads(error_body(error)) == {"error": {"message": "m", "type": type_, "param": param, "code": "c"}}


def test_an_error_quotes_whatever_it_has_to() -> None:
    message = 'a "quoted" \\ back\nslash \0 é'
    assert json.loads(error_body(RequestError(message, code="c")))["error"]["message"] == message


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        ('"input_tokens":3,"output_tokens":1', Usage(3, 1, None)),
        ('"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":32', Usage(35, 1, 32)),
        ('"input_tokens":3,"output_tokens":1,"cache_creation_input_tokens":32', Usage(35, 1, None)),
        (
            '"cache_creation_input_tokens":16,"cache_read_input_tokens":32,"input_tokens":0,"output_tokens":1',
            Usage(48, 1, 32),
        ),
        ('"cache_read_input_tokens":32', Usage(None, None, None)),
    ],
)
def test_of_a_message_what_was_cached_counts_apart(counts: str, read: Usage) -> None:
    assert usage([f'{{"type":"message","usage":{{{counts}}}}}'.encode()]) == read


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (b'"prompt_tokens":46,"total_tokens":50,"completion_tokens":4', Usage(46, 4)),
        (b'"prompt_tokens":46,"total_tokens":50,"completion_tokens":4,"prompt_tokens_details":null', Usage(46, 4)),
        (b'"prompt_tokens":46,"completion_tokens":4,"total_tokens":50', Usage(46, 4)),
        (
            b'"prompt_tokens":46,"completion_tokens":4,"total_tokens":50,"prompt_tokens_details":{"cached_tokens":32}',
            Usage(46, 4, 32),
        ),
        (b'"prompt_tokens":46,"total_tokens":50,"completion_tokens":4.5', Usage(46)),
        (b'"prompt_tokens":46,"total_tokens":50,"completion_tokens":1234567890123', Usage(46)),
        (b'"prompt_tokens":0,"total_tokens":0,"completion_tokens":0,"input_tokens":5', Usage(0, 0)),
    ],
)
@pytest.mark.parametrize(
    "behind", [b"", b',"prompt_tokens":7', b'},"x":{"cached_tokens":8,"completion_tokens":9', b',"y":"_tokens"']
)
def test_the_usual_counts_are_read_like_any_others(counts: bytes, expected: Usage, behind: bytes) -> None:
    """In the order in which engines write them, and with something behind them, which counts as well."""
    prompt = 7 if b"prompt" in behind else expected.prompt
    completion, cached = (9, 8) if b"cached" in behind else (expected.completion, expected.cached)
    assert usage([b'{"usage":{' + counts + behind + b"}}"]) == Usage(prompt, completion, cached)
