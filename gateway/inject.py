r"""Set or remove `kv_transfer_params` in a request body, or set its salt, without touching another byte of it.

The body is not decoded and encoded again: a pod must see the duplicate keys, number formats, escapes and white space
its client sent, and a long prompt should cost one copy. So the members of the top-level object are found in the bytes.

A pod pulls from wherever this key points, so a client's own must go in every spelling an engine would accept. JSON
allows only `\u00XX` as another way to write a letter or underscore, so the pattern below matches a string token exactly
when it decodes to the key. Most bodies hold neither the plain spelling nor such an escape and take the fast path, two
substring searches.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


def _spellings(character: str) -> str:
    escaped = "".join(f"[{digit}{digit.upper()}]" for digit in f"{ord(character):04x}")
    return rf"(?:{character}|\\u{escaped})"


class _Key:
    """A name, and what matches a string token exactly when it decodes to it."""

    def __init__(self, name: str) -> None:
        self.name = name.encode()
        self.token = re.compile(f'"{"".join(map(_spellings, name))}"'.encode())

    def may_be_in(self, body: bytes) -> bool:
        return (self.name in body or b"\\u00" in body) and self.token.search(body) is not None


_PARAMS = _Key("kv_transfer_params")
_SALT = _Key("cache_salt")

_SPACE = rb"[ \t\n\r]*+"
_OPENING = re.compile(rb"(%b\{)%b(\}?)" % (_SPACE, _SPACE))
_NAME = re.compile(rb'%b("[^"\\]*+(?:\\.[^"\\]*+)*+")%b:%b' % (_SPACE, _SPACE, _SPACE), re.DOTALL)
_SEPARATOR = re.compile(rb"%b([,}])" % _SPACE)
_DECODER = json.JSONDecoder(parse_int=str)  # str: no limit of digits
_MAX_MEMBERS = 1000  # a request has tens; each costs a step in Python, so a hostile million would hold up everyone


class _Member(NamedTuple):
    start: int  # behind the brace or comma before it
    end: int  # at the comma or brace behind it
    is_ours: bool


def may_hold_params(body: bytes) -> bool:
    """Whether some member of a JSON object may be called `kv_transfer_params`, however escaped. O(bytes), in C."""
    return _PARAMS.may_be_in(body)


def with_kv_transfer_params(body: bytes, params: bytes | None) -> bytes:
    """Return `body` whose one top-level `kv_transfer_params` is `params`, or that has none when `params` is None.

    `body` is a valid JSON object in UTF-8 without byte order mark (the caller has parsed it); `params` is valid JSON.
    Every member of that name goes, however escaped or repeated, with its comma and the white space around it; ours
    becomes the first member; all other bytes stay as sent, in order. Nested objects are not looked into.

    Raises ValueError when the first byte that is not white space is not `{`; and, of a body that may hold the key, when
    it turns out not to be JSON, nests too deeply or has over 1000 members. O(bytes) in C, and one step in Python per
    top-level member where the key may occur.
    """
    return _with(body, _PARAMS, params)


def with_cache_salt(body: bytes, salt: str) -> bytes:
    """Return `body` with this salt in the place of its own: its prompt shares no cached block with any other.

    As `with_kv_transfer_params` otherwise.
    """
    return _with(body, _SALT, msgspec.json.encode(salt))


def _with(body: bytes, key: _Key, value: bytes | None) -> bytes:
    opening = _OPENING.match(body)
    if opening is None:
        raise ValueError("the body is not a JSON object")
    there = key.may_be_in(body)
    if value is None and not there:
        return body
    head, is_empty, start = opening[1], bool(opening[2]), opening.end(1)
    member = b"" if value is None else b'"%b":%b' % (key.name, value)
    if there:
        return _replaced(body, start, key, member)
    return b"".join((head, member, b"" if is_empty else b",", memoryview(body)[start:]))


def remote_kv_source(host: str, port: int, kv_request_id: str) -> bytes:
    """Return, as JSON, where a request pulls from: `host`:`port`.

    The pair must be the very one that the source was configured with; `port` includes the rank's offset. Each attempt
    needs a fresh `kv_request_id`.
    """
    return msgspec.json.encode({"kv_request_id": kv_request_id, "remote_host": host, "remote_port": port})


def kv_transfer_params(source: bytes | None, prompt_token_ids: bytes | None) -> bytes | None:
    """Return the params, as JSON, of a request with these; None: it needs none. One copy of the ids."""
    if source is None and prompt_token_ids is None:
        return None
    members = []
    if source is not None:
        members.append(b'"remote_kv_source":%b' % source)
    if prompt_token_ids is not None:
        members.append(b'"prompt_token_ids":%b' % prompt_token_ids)
    return b"{%b}" % b",".join(members)


def _replaced(body: bytes, start: int, key: _Key, member: bytes) -> bytes:
    view = memoryview(body)
    members = list(_members(body, start, key))
    kept = [view[each.start : each.end] for each in members if not each.is_ours]
    return b"".join((view[:start], b",".join([member, *kept] if member else kept), view[members[-1].end :]))


def _members(body: bytes, start: int, key: _Key) -> Iterator[_Member]:
    # A value's end is found by decoding it: its shape is the client's, and a loop over its tokens in Python would let
    # a few MB of brackets hold up everyone for seconds. Latin-1 keeps offsets in the text equal to those in the body.
    text = body.decode("latin-1")
    for _ in range(_MAX_MEMBERS):
        name = _NAME.match(body, start)
        separator = name and _SEPARATOR.match(body, _value_end(text, name.end()))
        if not name or not separator:
            raise ValueError("the body is not valid JSON")
        yield _Member(start, separator.start(1), key.token.fullmatch(name[1]) is not None)
        if separator[1] == b"}":
            return
        start = separator.end()
    raise ValueError(f"the body has more than {_MAX_MEMBERS} members")


def _value_end(text: str, start: int) -> int:
    try:
        return _DECODER.raw_decode(text, start)[1]
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error
