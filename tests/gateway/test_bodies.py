"""Each byte of a body, a query, headers and an answer is its sender's, but for what the gateway has to write."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.fleet import MODEL, Answer, Front, connection, fleet, posted, serving, text_body
from tests.gateway.scripted import page, says, scripted

OK = says({"ok": True})
BODY = json.dumps(text_body([1])).encode()
PATHS = ("/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/other")


async def post(front: Front, body: bytes, path: str = "/v1/completions", **headers: str) -> Answer:
    return await front.post(path, body, {name.replace("_", "-"): value for name, value in headers.items()})


# What is looked at arrives as it was sent


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"demo-model", "prompt" : 1,"prompt":[2], "x":1.00E+2,"y":"\\u00e9\\/","z":{"kv_transfer_params":1}}',
        b' \r\n\t{"prompt":[1]}\n\n \t',
        b'\xef\xbb\xbf{"prompt":[1]}',
        b'{"prompt":"\xc3\xa9\xf0\x9f\x98\x80 \xff\xfe","a":""}',
        b'{"prompt":[1],"deep":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"prompt":[1],"n":1,"big":' + b"9" * 400 + b"}",
    ],
    ids=["odd", "white space", "byte order mark", "no utf-8", "deep", "huge number"],
)
async def test_a_body_that_is_looked_at_arrives_byte_for_byte(path: str, body: bytes) -> None:
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts[path] = OK
        assert (await post(front, body, path)).status == 200
        assert [arrived.body for arrived in pod.requests if arrived.path == path] == [body]


@pytest.mark.parametrize("path", PATHS)
async def test_kv_transfer_params_go_whatever_the_path_and_nothing_else_does(path: str) -> None:
    body = (
        b'\xef\xbb\xbf{ "a":1.0, "kv_transfer_params" : {"remote_kv_source":{}},"b":[ ],"\\u006bv_transfer_params":0}'
    )
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts[path] = OK
        assert (await post(front, body, path)).status == 200
        assert [arrived.body for arrived in pod.requests if arrived.path == path] == [b'\xef\xbb\xbf{ "a":1.0,"b":[ ]}']


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name not in ("model", "previous_response_id")),
        st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
        max_size=6,
    ),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
)
async def test_any_object_arrives_byte_for_byte(
    fields: dict[str, Any], indent: int | str | None, ascii_only: bool
) -> None:
    body = json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts["/v1/embeddings"] = OK
        assert (await post(front, body, "/v1/embeddings")).status == 200
        assert pod.requests[-1].body == body


# Packed bodies


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(BODY)),
        ("GZip", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
        ("", BODY),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/other"])
async def test_a_packed_body_is_unpacked_where_it_is_looked_at(coding: str, packed: bytes, path: str) -> None:
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts[path] = OK
        assert (await post(front, packed, path, content_encoding=coding)).status == 200
        (arrived,) = [arrived for arrived in pod.requests if arrived.path == path]
        assert (arrived.body, arrived.headers["content-length"]) == (BODY, str(len(BODY)))
        assert "content-encoding" not in arrived.headers
        assert (await post(front, gzip.compress(b'{"model":"nobody"}'), path, content_encoding="gzip")).status == 404


@pytest.mark.parametrize(
    ("coding", "packed", "status", "code"),
    [
        ("br", BODY, 415, "unsupported_encoding"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 415, "unsupported_encoding"),
        ("gzip", BODY, 400, "invalid_body"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "invalid_body"),
        ("gzip", gzip.compress(BODY) + b"more", 400, "invalid_body"),
        ("gzip", gzip.compress(BODY) * 2, 400, "invalid_body"),
        ("deflate", gzip.compress(BODY), 400, "invalid_body"),
        ("gzip", gzip.compress(b"x" * 2_000_001), 413, "body_too_large"),
        ("gzip", gzip.compress(b"not json"), 400, "invalid_json"),
        ("gzip", b"", 400, "invalid_json"),
    ],
)
async def test_what_does_not_unpack_is_refused(coding: str, packed: bytes, status: int, code: str) -> None:
    async with scripted() as pod, serving([pod], limits={"max_body": 2_000_000}) as front:
        pod.scripts["/v1/completions"] = OK
        answer = await post(front, packed, content_encoding=coding)
        assert (answer.status, answer.json["error"]["code"]) == (status, code)
        assert await front.metric("requests_total", status=str(status)) == 1
        assert pod.requests == []


async def test_a_bomb_is_given_up_at_the_limit_and_holds_nobody_up() -> None:
    bomb = gzip.compress(b" " * 300_000_000, compresslevel=1)
    async with fleet(limits={"max_body": 50_000_000}) as (front, (pod,)):
        exploding = asyncio.create_task(post(front, bomb, content_encoding="gzip"))
        slowest, clock = 0.0, asyncio.get_running_loop().time
        while not exploding.done():
            began = clock()
            assert (await front.get("/health")).status == 200
            slowest = max(slowest, clock() - began)
        assert (await exploding).status == 413
        assert slowest < 0.5
    assert not pod.requests


# Lines and headers


async def test_headers_arrive_as_often_as_they_were_sent_and_in_order() -> None:
    async with scripted() as pod, serving([pod]) as front, connection(front) as (reader, writer):
        seen: list[tuple[str, str]] = []

        async def notes(request: web.Request) -> web.Response:
            seen.extend(request.headers.items())
            answer = web.Response(body=b"x")
            for value in ("a=1", "b=2"):
                answer.headers.add("Set-Cookie", value)
            answer.headers["X-ODD-Case"] = "kept"
            return answer

        pod.scripts["/v1/completions"] = notes
        head, _, body = posted({"prompt": [1]}).partition(b"\r\n\r\n")
        writer.write(head + b"\r\nX-twice: 1\r\nx-TWICE: 2\r\nX-Latin: caf\xe9\r\nX-Utf: \xc3\xa9\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
    assert [pair for pair in seen if pair[0].lower() == "x-twice"] == [("X-twice", "1"), ("x-TWICE", "2")]
    values = {name: value.encode("utf-8", "surrogateescape") for name, value in seen}
    assert (values["X-Latin"], values["X-Utf"]) == (b"caf\xe9", b"\xc3\xa9")
    assert answer.count(b"Set-Cookie: ") == 2
    assert b"X-ODD-Case: kept" in answer


@pytest.mark.parametrize("query", ["?", "?a=%2f%20+&a=2&b", "?x=%C3%A9;y=[]|", "?q=?&r=/../"])
async def test_a_query_arrives_as_it_was_sent(query: str) -> None:
    async with scripted() as pod, serving([pod]) as front, connection(front) as (reader, writer):
        pod.scripts["/v1/embeddings"] = OK
        data = posted({"input": "x"}).replace(b"/v1/completions", b"/v1/embeddings" + query.encode())
        writer.write(data)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert pod.requests[-1].path in ("/v1/embeddings" + query, "/v1/embeddings" + query.removesuffix("?"))


# Answers


@pytest.mark.parametrize("packed", [gzip.compress(b"x" * 1000), b"\0\xff\xfe", b""])
async def test_an_answer_arrives_byte_for_byte(packed: bytes) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"content-encoding": "gzip", "content-type": "x/y"})

    async with scripted() as pod, serving([pod]) as front:
        pod.scripts |= dict.fromkeys(PATHS, answers)
        for path in PATHS:
            answer = await post(front, b'{"model":"%b"}' % MODEL.encode(), path, accept_encoding="gzip")
            assert (answer.status, answer.body) == (200, packed)
            assert (answer.headers["content-encoding"], answer.headers["content-type"]) == ("gzip", "x/y")
            assert pod.requests[-1].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("status", [204, 304, 205])
async def test_an_answer_without_a_body_has_none(status: int) -> None:
    async def empty(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"etag": "1"})

    async with scripted() as pod, serving([pod]) as front:
        pod.scripts |= {"/v1/files": empty, "/v1/after": page(b"fine")}
        answer = await front.get("/v1/files")
        assert (answer.status, answer.body, answer.headers["etag"]) == (status, b"", "1")
        assert (await front.get("/v1/after")).body == b"fine"


async def test_a_body_without_a_length_or_with_an_announcement_is_taken() -> None:
    async with fleet() as (front, _), connection(front) as (reader, writer):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        for piece in (BODY[:9], BODY[9:]):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
