"""curl, and what people make it do."""

import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from tests.conformance.programs import Ended, run
from tests.gateway.fleet import MODEL, SLOW, Front, fleet, serving, text_body, until
from tests.gateway.scripted import says, scripted

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
JSON = ("-H", "Content-Type: application/json")
BODY = json.dumps(text_body("say this", max_tokens=4))
STREAMED = json.dumps(text_body("say this", max_tokens=4, stream=True))
MB = 1 << 20


async def curl(*arguments: str | Path, given: bytes = b"") -> Ended:
    """Without a message about progress; anything but a whole answer fails."""
    ended = await run("curl", "-sS", *arguments, given=given)
    assert ended.status == 0, ended.errors
    return ended


def padded(size: int) -> bytes:
    return json.dumps(text_body([1], padding="x" * size)).encode()


async def test_a_completion_is_answered_and_streamed(front: Front) -> None:
    whole = await curl(f"{front.url}/v1/completions", *JSON, "-d", BODY)
    said = json.loads(whole.out)["choices"][0]["text"]
    streamed = await curl("-N", f"{front.url}/v1/completions", *JSON, "-d", STREAMED)
    events = [line.removeprefix("data: ") for line in streamed.out.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == said


async def test_several_requests_go_over_one_connection(front: Front) -> None:
    told = ("-o", "/dev/null", "-w", "%{num_connects} %{http_code}\n")
    posted = (*told, *JSON, "-d", BODY, f"{front.url}/v1/completions")
    streamed = (*told, *JSON, "-d", STREAMED, f"{front.url}/v1/completions")
    refused = (*told, *JSON, "-d", "{", f"{front.url}/v1/completions")
    got = (*told, f"{front.url}/v1/models")
    ended = await curl(*posted, "--next", *streamed, "--next", *refused, "--next", *got, "--next", *posted)
    assert ended.out.split(b"\n")[:-1] == [b"1 200", b"0 200", b"0 400", b"0 200", b"0 200"]


async def test_a_large_body_waits_for_100_continue() -> None:
    async with scripted(completions=says({"ok": True})) as pod, serving([pod]) as front:
        sent = padded(2 * MB)
        ended = await curl("-v", *JSON, "--data-binary", "@-", f"{front.url}/v1/completions", given=sent)
        assert "> Expect: 100-continue" in ended.errors
        assert "< HTTP/1.1 100 Continue" in ended.errors
        assert json.loads(ended.out) == {"ok": True}
    assert pod.requests[-1].body == sent
    assert "expect" not in pod.requests[-1].headers


async def test_a_body_that_is_too_large_is_refused_whether_or_not_its_length_is_known() -> None:
    async with scripted(completions=says({"ok": True})) as pod, serving([pod], limits={"max_body": MB}) as front:
        for how in ((), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect:")):
            told = await run(
                *("curl", "-sS", "-w", "\n%{http_code}", *how, *JSON, "--data-binary", "@-"),
                f"{front.url}/v1/completions",
                given=padded(3 * MB),
            )
            answer, _, status = told.out.rpartition(b"\n")
            assert status == b"413", (how, told)
            assert json.loads(answer)["error"]["code"] == "body_too_large"
    assert pod.requests == []


@pytest.mark.parametrize("size", [10, 3 * MB])
async def test_a_chunked_body_arrives_whole(size: int) -> None:
    async with scripted(completions=says({"ok": True})) as pod, serving([pod]) as front:
        chunked = ("-H", "Transfer-Encoding: chunked")
        ended = await curl(*chunked, *JSON, "--data-binary", "@-", f"{front.url}/v1/completions", given=padded(size))
        assert json.loads(ended.out) == {"ok": True}
    assert pod.requests[-1].body == padded(size)


async def test_a_compressed_answer_is_passed_on_as_it_is() -> None:
    text = b'{"ok": true, "padding": "%b"}' % (b"x" * 10_000)

    async def packed(request: web.Request) -> web.Response:
        assert "gzip" in request.headers["accept-encoding"]
        return web.Response(body=gzip.compress(text), headers={"content-encoding": "gzip"})

    async with scripted(completions=packed) as pod, serving([pod]) as front:
        asked = (*JSON, "-d", BODY, f"{front.url}/v1/completions")
        assert (await curl("--compressed", *asked)).out == text
        raw = await curl("-H", "Accept-Encoding: gzip", *asked)
        assert gzip.decompress(raw.out) == text


async def test_http_1_0_is_answered_without_chunks(front: Front) -> None:
    for body in (BODY, STREAMED):
        ended = await curl("-0", "-i", *JSON, "-d", body, f"{front.url}/v1/completions")
        head, _, answer = ended.out.partition(b"\r\n\r\n")
        assert re.match(rb"HTTP/1\.[01] 200", head)
        assert b"transfer-encoding" not in head.lower()
        assert answer.startswith(b"{") or answer.endswith(b"data: [DONE]\n\n")


async def test_head_is_answered_without_a_body(front: Front) -> None:
    told = ("-I", "-w", "%{http_code} %{num_connects}\n")
    for path, status in (("/health", b"200"), ("/v1/models", b"200"), ("/v1/completions", b"405"), ("/x", b"404")):
        ended = await curl(*told, f"{front.url}{path}", f"{front.url}{path}")
        assert re.findall(rb"\r\n\r\n(\d+) (\d)\n", ended.out) == [(status, b"1"), (status, b"0")], path


@pytest.mark.parametrize("how", [("--http2",), ("-H", "Connection: Upgrade", "-H", "Upgrade: websocket")])
async def test_an_offer_to_change_the_protocol_is_passed_over(front: Front, how: tuple[str, ...]) -> None:
    for arguments in ((*JSON, "-d", BODY, f"{front.url}/v1/completions"), (f"{front.url}/v1/models",)):
        ended = await curl(*how, "-o", "/dev/null", "-w", "%{http_version} %{http_code}", *arguments)
        assert ended.out == b"1.1 200"


async def test_a_file_is_uploaded(front: Front, tmp_path: Path) -> None:
    (sound := tmp_path / "a.wav").write_bytes(bytes(range(256)) * 8192)
    ended = await curl(f"{front.url}/v1/audio/transcriptions", "-F", f"model={MODEL}", "-F", f"file=@{sound}")
    digest = hashlib.sha256(sound.read_bytes()).hexdigest()
    assert json.loads(ended.out)["text"] == f"{2 * MB} bytes, {digest}"


async def test_a_reader_that_stops_in_the_middle_ends_the_stream_on_the_pod() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)):
        long = json.dumps(text_body("say this", max_tokens=8000, stream=True))
        ended = await run("curl", "-sSN", "--max-time", "0.5", *JSON, "-d", long, f"{front.url}/v1/completions")
        assert ended.status == 28, ended  # its time was up
        assert ended.out.startswith(b"data: ")
        await until(lambda: pod.requests[-1].outcome == "aborted")
        await front.idle()
