import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.inject import (
    kv_transfer_params,
    may_hold_params,
    remote_kv_source,
    with_cache_salt,
    with_kv_transfer_params,
)

KEY = "kv_transfer_params"
OURS = b'{"remote_kv_source":{"kv_request_id":"k","remote_host":"10.0.0.2","remote_port":7777}}'
THEIRS = b'{"remote_kv_source":{"kv_request_id":"x","remote_host":"6.6.6.6","remote_port":6}}'

Pairs = list[tuple[str, Any]]


def top(body: bytes) -> Pairs:
    """The members of the outermost object, duplicates and order kept."""
    levels: list[Pairs] = []

    def keep(pairs: Pairs) -> dict[str, Any]:
        levels.append(pairs)
        return dict(pairs)

    json.loads(body, object_pairs_hook=keep)
    return levels[-1]


def set_ours(body: bytes) -> bytes:
    return with_kv_transfer_params(body, OURS)


def removed(body: bytes) -> bytes:
    return with_kv_transfer_params(body, None)


# --- setting


def test_the_params_become_the_first_member_and_nothing_else_changes() -> None:
    assert set_ours(b'{"model":"m","max_tokens":7}') == b'{"kv_transfer_params":%b,"model":"m","max_tokens":7}' % OURS


def test_a_request_that_pulls_carries_exactly_one_key_and_its_own_max_tokens() -> None:
    body = set_ours(b'{"model":"m","max_tokens":7,"stream":true}')
    decoded = json.loads(body)
    assert list(decoded[KEY]) == ["remote_kv_source"]
    assert decoded["max_tokens"] == 7
    assert decoded["stream"] is True


def test_without_a_source_there_is_no_such_key_and_the_body_is_the_very_same() -> None:
    body = b'{"model":"m","max_tokens":7}'
    assert removed(body) is body


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"model":"m"}', False),
        (b'{"kv_transfer_param":1}', False),
        (b'{"a":"a word on kv_transfer_params"}', False),
        (b'{"kv_transfer_params":1}', True),
        (b'{"\\u006bv_transfer\\u005Fparams":1}', True),
        (b'{"a":{"kv_transfer_params":1}}', True),  # not of the outermost object, which only a closer look tells
    ],
)
def test_a_body_without_the_key_needs_no_closer_look(body: bytes, may: bool) -> None:
    assert may_hold_params(body) is may
    assert may or removed(body) is body


@pytest.mark.parametrize("body", [b"{}", b" {\n}\t"])
def test_an_empty_object_gets_no_comma(body: bytes) -> None:
    assert json.loads(set_ours(body)) == {KEY: json.loads(OURS)}


def test_what_the_client_sent_survives_byte_for_byte() -> None:
    rest = (
        b'\n  "seed": 1.0e+2, "seed": 12345678901234567890123,\r\n\t"t":-0.0 ,"user":"\\u00e9\xc3\xa9\\/\\ud83d\\ude00"'
        b' , "stop" :[ "}" , "\\"{", "," ] }\n'
    )
    assert set_ours(b" {" + rest) == b' {"kv_transfer_params":' + OURS + b"," + rest


# --- removing the client's own


@pytest.mark.parametrize(
    ("body", "cleaned"),
    [
        (b'{"kv_transfer_params":%b}', b"{}"),
        (b'{"kv_transfer_params":%b,"a":1}', b'{"a":1}'),
        (b'{"a":1,"kv_transfer_params":%b}', b'{"a":1}'),
        (b'{"a":1,"kv_transfer_params":%b,"b":2}', b'{"a":1,"b":2}'),
        (b'{ "a":1 ,\n "kv_transfer_params" : %b\n, "b":2 }\n', b'{ "a":1 , "b":2 }\n'),
        (b'{"kv_transfer_params":%b,"a":1,"kv_transfer_params":%b}', b'{"a":1}'),
        (b'{"kv_transfer_params":%b,"kv_transfer_params":null}', b"{}"),
        (b'{"kv_transfer_params":%b,"a":"kv_transfer_params"}', b'{"a":"kv_transfer_params"}'),
    ],
)
def test_a_clients_own_params_go_with_their_comma(body: bytes, cleaned: bytes) -> None:
    body = body.replace(b"%b", THEIRS)
    assert removed(body) == cleaned
    assert top(set_ours(body)) == [(KEY, json.loads(OURS)), *top(cleaned)]


@pytest.mark.parametrize(
    "value",
    [b"null", b"1e5", b"-0", b"true", b'"}"', b"[]", b"{}", b'[{"a":"]}\\""},[[]],"\\\\"]', b"NaN", b"9" * 5000],
)
def test_the_params_go_whatever_their_value(value: bytes) -> None:
    assert removed(b'{"kv_transfer_params": %b ,"a":[1]}' % value) == b'{"a":[1]}'


@pytest.mark.parametrize(
    "spelling",
    [
        rb"kv\u005ftransfer_params",
        rb"kv\u005Ftransfer\u005fparams",
        rb"\u006bv_transfer_params",
        rb"\u006Bv_transfer_param\u0073",
        "".join(rf"\u{ord(character):04x}" for character in KEY).encode(),
        "".join(rf"\u{ord(character):04X}" for character in KEY).encode(),
    ],
)
def test_an_escaped_spelling_does_not_smuggle_the_key(spelling: bytes) -> None:
    body = b'{"a":1,"%b":%b}' % (spelling, THEIRS)
    assert KEY in json.loads(body)
    assert removed(body) == b'{"a":1}'


@pytest.mark.parametrize(
    "name",
    [
        rb"kv\\u005ftransfer_params",
        rb"\"kv_transfer_params",
        b"kv_transfer_params ",
        b"KV_transfer_params",
        rb"kv\u0020transfer_params",
        b"x_kv_transfer_params",
        b"",
    ],
)
def test_another_name_that_looks_alike_stays(name: bytes) -> None:
    body = b'{"%b":1,"kv_transfer_params":2}' % name
    assert removed(body) == b'{"%b":1}' % name


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":{"kv_transfer_params":1}}',
        b'{"a":[{"kv_transfer_params":1,"b":{"kv\\u005ftransfer_params":2}}]}',
        b'{"a":"kv_transfer_params"}',
        b'{"a":"{\\"kv_transfer_params\\":1}"}',
        b'{"a":["kv_transfer_params",":"]}',
        b'{"a":"\\"kv_transfer_params"}',
        b'{"a":"\\u00e9"}',
    ],
)
def test_the_key_inside_values_is_left_alone(body: bytes) -> None:
    assert removed(body) == body
    assert set_ours(body) == b'{"kv_transfer_params":%b,%b' % (OURS, body[1:])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just(KEY), inner, max_size=3),
    max_leaves=8,
)
spaces = st.text(" \t\r\n", max_size=2)


@st.composite
def escaped(draw: st.DrawFn, text: str) -> str:
    """`text` as the inside of a JSON string, with letters escaped at random."""
    letters = []
    for letter in text:
        plain = json.dumps(letter, ensure_ascii=draw(st.booleans()))[1:-1]
        hexadecimal = f"{ord(letter):04x}"
        spellings = [plain] if len(hexadecimal) > 4 else [plain, rf"\u{hexadecimal}", rf"\u{hexadecimal.upper()}"]
        letters.append(draw(st.sampled_from(spellings)))
    return "".join(letters)


@st.composite
def members(draw: st.DrawFn) -> tuple[str, str]:
    """A member's name, and the member as it may be written."""
    name = draw(st.sampled_from([KEY, KEY, "model", "messages", KEY + "\\", '"' + KEY]) | st.text())
    value = json.dumps(draw(json_values), ensure_ascii=draw(st.booleans()))
    before, behind, around = draw(spaces), draw(spaces), draw(spaces)
    return name, f'{before}"{draw(escaped(name))}"{behind}:{around}{value}{behind}'


@settings(deadline=None)
@given(written=st.lists(members(), max_size=6), outside=st.tuples(spaces, spaces), params=st.sampled_from([OURS, None]))
def test_of_any_object_only_the_key_goes_and_every_other_member_keeps_its_bytes(
    written: list[tuple[str, str]], outside: tuple[str, str], params: bytes | None
) -> None:
    body = f"{outside[0]}{{{','.join(text for _, text in written)}}}{outside[1]}".encode()
    result = with_kv_transfer_params(body, params)

    ours = [] if params is None else [f'"{KEY}":{params.decode()}']
    kept = [text for name, text in written if name != KEY]
    assert result.decode() == f"{outside[0]}{{{','.join([*ours, *kept])}}}{outside[1]}"

    expected = [(name, value) for name, value in top(body) if name != KEY]
    assert top(result) == ([] if params is None else [(KEY, json.loads(params))]) + expected
    assert removed(result) == removed(body)


# --- what is not a request


@pytest.mark.parametrize("body", [b"", b"  ", b"[]", b'"{}"', b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b"\x0b{}"])
def test_a_body_that_is_no_object_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        set_ours(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"kv_transfer_params"',
        b'{"kv_transfer_params":',
        b'{"kv_transfer_params":}',
        b'{"kv_transfer_params":1',
        b'{"kv_transfer_params":[1}',
        b'{"kv_transfer_params":1 "a":2}',
        b'{"kv_transfer_params":1,}',
        b'{,"kv_transfer_params":1}',
        b'{} "kv_transfer_params"',
    ],
)
def test_a_body_that_is_not_json_is_an_error_where_the_key_may_occur(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"not valid JSON|Expecting"):
        removed(body)


def test_endless_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        removed(b'{"a":%b%b,"kv_transfer_params":1}' % (b"[" * 200_000, b"]" * 200_000))


def test_a_flood_of_members_is_an_error_instead_of_a_stall() -> None:
    with pytest.raises(ValueError, match="more than 1000 members"):
        removed(b'{%b"kv_transfer_params":1}' % (b'"":0,' * 1000))
    assert removed(b'{%b"kv_transfer_params":1}' % (b'"":0,' * 999)).count(b'""') == 999


# --- the params


@pytest.mark.parametrize(
    ("body", "salted"),
    [
        (b'{"model":"m"}', b'{"cache_salt":"s\\"1","model":"m"}'),
        (b"{}", b'{"cache_salt":"s\\"1"}'),
        (b'{"a": 1, "cache_salt": "mine", "b":2}', b'{"cache_salt":"s\\"1","a": 1, "b":2}'),
        (b'{"a":1,"cache_s\\u0061lt":null,"cache_salt":5}', b'{"cache_salt":"s\\"1","a":1}'),
        (b'{"a":"cache_salt","b":{}}', b'{"cache_salt":"s\\"1","a":"cache_salt","b":{}}'),
    ],
)
def test_a_salt_takes_the_place_of_the_clients_own(body: bytes, salted: bytes) -> None:
    assert with_cache_salt(body, 's"1') == salted


def test_a_body_that_is_no_object_has_no_salt() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        with_cache_salt(b"[]", "s")


def test_a_source_is_named_in_the_engines_own_words() -> None:
    assert kv_transfer_params(remote_kv_source("10.0.0.2", 7777, "k"), None) == OURS


def test_a_request_brings_what_it_has() -> None:
    source = remote_kv_source("h", 1, "k")
    assert kv_transfer_params(None, None) is None
    assert kv_transfer_params(None, b"[1,2]") == b'{"prompt_token_ids":[1,2]}'
    both = json.loads(kv_transfer_params(source, b"[1,2]") or b"")
    assert both == {"remote_kv_source": json.loads(source), "prompt_token_ids": [1, 2]}


def test_two_requests_carry_two_ids() -> None:
    first, second = (json.loads(remote_kv_source("h", 1, kv_request_id)) for kv_request_id in ("k1", "k2"))
    assert {source["kv_request_id"] for source in (first, second)} == {"k1", "k2"}


@pytest.mark.parametrize("host", ["[fd00::1]", "fd00::1", 'a"b'])
def test_a_host_survives_as_it_was_configured(host: str) -> None:
    source = msgspec.json.decode(remote_kv_source(host, 7779, "k"))
    assert source == {"kv_request_id": "k", "remote_host": host, "remote_port": 7779}
