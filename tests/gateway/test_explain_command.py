"""`p2p-gateway explain`: a prompt in, the decision out."""

import asyncio
import io
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from gateway.cli import main
from gateway.decision import SourceReason
from gateway.explain_command import _WHY
from tests.gateway.fleet import (
    DEADLINE_S,
    MODEL,
    PREFIX_ONLY,
    completions,
    fleet,
    ids,
    serving,
    simulated,
    spec,
    text_body,
    warm,
)


class Told(NamedTuple):
    code: int
    out: str
    err: str


Explain = Callable[..., Awaitable[Told]]


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    """The command in a thread, with a loop of its own."""

    async def runs(*options: str) -> Told:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["explain", *options])
        return Told(code, *capsys.readouterr())

    return runs


def types(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """What comes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


async def test_a_prompt_is_shown_with_where_it_would_go_and_why(explain: Explain) -> None:
    text = "What is cached where? " * 20
    async with fleet(2, placement=PREFIX_ONLY) as (front, (one, two)):
        await warm(one, text)
        await front.settled(one)
        sent = len(completions(one)) + len(completions(two))
        code, out, err = await explain("--url", front.url, text)
        assert (code, err) == (0, "")
        assert len(completions(one)) + len(completions(two)) == sent
        told = await front.explain(text)
    heads, first, second, _, prompt, chosen, source = out.splitlines()
    assert heads.split()[:3] == ["pod", "gpu", "cpu"]
    cells = first.split()
    held = told["candidates"][0 if told["candidates"][0]["pod"] == one.url else 1]["cached_tokens"]
    assert cells[:5] == ["→", one.url, *map(str, held.values())]
    assert second.split()[0] == two.url
    assert f"{told['tokens']} tokens (pod), in blocks of 16" in prompt
    assert chosen.startswith(
        f"chosen  {one.url}: {told['predicted_cached_tokens']} tokens cached, first token expected in "
    )
    assert source == "source  none, self: nobody holds more of the prompt than the chosen pod"


async def test_a_source_is_named_with_what_it_holds(explain: Explain, tmp_path: Path) -> None:
    only = {"filters": [{"type": "label", "key": "computes", "values": ["yes"]}]}
    async with simulated(2) as (consumer, holder):
        pods = [spec(consumer, labels={"computes": "yes"}), spec(holder)]
        async with serving(pods, placement=only) as front:
            await warm(holder, ids(640))
            await front.settled(holder)
            file = tmp_path / "body.json"
            file.write_text(json.dumps(text_body(ids(640))))
            code, out, _ = await explain("--url", front.url, "--body", str(file))
    lines = out.splitlines()
    assert code == 0
    assert "filtered: label" in lines[2]
    assert lines[-1].startswith(f"source  {holder.url} holds 640 tokens: ")


async def test_standard_input_may_be_a_text_or_a_body_and_the_answer_may_be_had_as_it_is(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, chat = {"prompt": "hello"}, {"messages": [{"role": "user", "content": "hello"}]}
    given = ("-", b"hello", text), ("-", json.dumps(chat).encode(), chat), ("--body=-", json.dumps(chat).encode(), chat)
    async with fleet(1) as (front, _):
        for option, data, body in given:
            types(monkeypatch, data)
            code, out, _ = await explain("--url", front.url, option, "--json")
            asked = (await front.post("/explain", {"model": MODEL, **body})).json
            assert (code, json.loads(out)["tokens"], json.loads(out).keys()) == (0, asked["tokens"], asked.keys())


async def test_the_model_has_to_be_named_where_there_are_several(explain: Explain) -> None:
    async with fleet(1, pod={"loras": {"a": "/a"}}) as (front, _):
        code, out, err = await explain("--url", front.url, "hello")
        assert (code, out) == (3, "")
        assert err == f"p2p-gateway: --model is needed: there are {MODEL}, a\n"
        assert (await explain("--url", front.url, "hello", "--model", "a")).code == 0


async def test_at_an_operators_listener_the_model_has_to_be_named(explain: Explain) -> None:
    async with fleet(1, admin={"port": 0}) as (front, _):
        code, _, err = await explain("--url", front.operators_url, "hello")
        assert (code, err) == (3, "p2p-gateway: --model is needed: models are not listed here\n")
        assert (await explain("--url", front.operators_url, "hello", "--model", MODEL)).code == 0


async def test_what_the_gateway_refuses_is_told_in_its_words(explain: Explain) -> None:
    async with fleet(1) as (front, _):
        code, out, err = await explain("--url", front.url, "hello", "--model", "none")
    assert (code, out) == (1, "")
    assert err == f"p2p-gateway: {front.url}/explain: The model `none` does not exist.\n"


@pytest.mark.parametrize(
    ("options", "data", "reason"),
    [
        (["hello", "--url", "http://127.0.0.1:1"], b"", "http://127.0.0.1:1: "),
        (["--body", "nowhere.json"], b"", "nowhere.json: No such file or directory"),
        (["--body", "-"], b"[1]", "standard input: not a JSON object"),
        (["-"], b"\xff", "standard input: neither text nor JSON"),
    ],
)
async def test_what_cannot_be_asked_is_told_in_one_line(
    explain: Explain, monkeypatch: pytest.MonkeyPatch, options: list[str], data: bytes, reason: str
) -> None:
    types(monkeypatch, data)
    code, out, err = await explain(*options)
    assert (code, out) == (3, "")
    (line,) = err.splitlines()
    assert line.startswith(f"p2p-gateway: {reason}")


@asynccontextmanager
async def stranger(answer: bytes | None) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Something that answers 200 with this to whatever it is asked, or never; it says when it was asked."""
    asked, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        if answer is None:
            await ended.wait()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        ended.set()


NO_DECISIONS = (b"[1]", b"{}", b"3", b'{"candidates": []}', b"<html>", b"\xff")


@pytest.mark.parametrize(
    ("answer", "options"),
    [*((each, ()) for each in NO_DECISIONS), *((each, ("--json",)) for each in NO_DECISIONS[-2:])],
)
async def test_what_is_no_gateway_is_told_in_one_line(explain: Explain, answer: bytes, options: Sequence[str]) -> None:
    async with stranger(answer) as (url, _):
        code, out, err = await explain("--url", url, "hello", "--model", "m", *options)
    assert (code, out) == (3, "")
    assert err == f"p2p-gateway: {url} is no gateway, or of another version: its answer is no decision\n"


@pytest.mark.parametrize("options", [("\udcff",), ("hello", "--model", "\udcff"), ("hello", "--path", "/\udcff")])
async def test_arguments_that_are_no_text_are_told_in_one_line(explain: Explain, options: tuple[str, ...]) -> None:
    async with stranger(b"{}") as (url, asked):
        code, out, err = await explain("--url", url, "--model", "m", *options)
        assert not asked.is_set()
    assert (code, out, err) == (3, "", "p2p-gateway: the prompt, --model or --path: not UTF-8\n")


async def test_ctrl_c_ends_it_without_a_word() -> None:
    async with stranger(None) as (url, asked):
        command = (sys.executable, "-m", "gateway", "explain", "--url", url, "hello", "--model", "m")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await asked.wait()
                process.send_signal(signal.SIGINT)
                assert await process.communicate() == (b"", b"")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 130


def test_every_reason_is_explained() -> None:
    assert _WHY.keys() == set(get_args(SourceReason))


def test_a_prompt_and_a_body_exclude_each_other() -> None:
    for options in ([], ["hello", "--body", "x"]):
        with pytest.raises(SystemExit) as left:
            main(["explain", *options])
        assert left.value.code == 2
