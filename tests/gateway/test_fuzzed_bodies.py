"""Bodies that no client should send: a clear word to who sent it, flat memory, and nobody else waits for it."""

import asyncio
import gc
import gzip
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.openai import Peek
from tests.bench.clock import resident_bytes
from tests.gateway.fleet import MODEL, Answer, Front, fleet, serving
from tests.gateway.load.command import command
from tests.gateway.load.run import pod, spec
from tests.gateway.scripted import says, scripted

MB = 1 << 20
DEEP = 100_000
JUDGED = {200, 400, 404, 422}  # by the gateway, or by the pod

BROKEN = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "a string": b'"prompt"',
    "cut off": b'{"prompt": "x',
    "two": b'{"prompt":"x"}{"prompt":"y"}',
    "more behind it": b'{"prompt":"x"} x',
    "a comma too many": b'{"prompt":"x",}',
    "single quotes": b"{'prompt':'x'}",
    "a comment": b'{"prompt":"x"/*...*/}',
    "NaN": b'{"prompt":"x","temperature":NaN}',
    "NUL behind it": b'{"prompt":"x"}\0',
    "nothing but NUL": b"\0" * 100,
    "a line break in a string": b'{"prompt":"a\nb"}',
    "UTF-16": '{"prompt":"x"}'.encode("utf-16"),
    "two marks": b"\xef\xbb\xbf" * 2 + b'{"prompt":"x"}',
    "deep": b'{"prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep and open": b'{"prompt":"x","x":' + b'{"a":' * DEEP,
    "deep where nobody looks": b'{"prompt":"x","metadata":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "as many as there are not": b'{"prompt":"x","n":1e999}',
    "more digits than a number has": b'{"prompt":"x","n":1' + b"0" * 5000 + b"}",
    "a fraction of sequences": b'{"prompt":"x","n":1.5}',
}
ODD = {
    "no UTF-8": b'{"prompt":"\xff\xfe"}',
    "no UTF-8 in a name": b'{"\xff":1,"prompt":"x"}',
    "overlong UTF-8": b'{"prompt":"\xc0\xaf"}',
    "half a surrogate in UTF-8": b'{"prompt":"\xed\xa0\x80"}',
    "a mark": b'\xef\xbb\xbf{"prompt":"x"}',
    "twice the same": b'{"model":"nobody","prompt":"y","model":"%b","prompt":"x"}' % MODEL.encode(),
    "half a surrogate": rb'{"prompt":"\ud800"}',
    "the wrong half first": rb'{"prompt":"\udc00\ud800","user":"\ud800"}',
    "NUL in a string": rb'{"prompt":"a\u0000b"}',
    "no sequence": b'{"prompt":"x","n":-1}',
    "endless": b'{"prompt":"x","max_tokens":1e999}',
    "many tokens": b'{"prompt":"x","max_tokens":1' + b"0" * 5000 + b"}",
    "hot": b'{"prompt":"x","temperature":1' + b"0" * 5000 + b"}",
    "ids that are none": b'{"prompt":[-1,99999999999999999999,1.5]}',
    "an id of 5,000 digits": b'{"prompt":[1' + b"0" * 5000 + b"]}",
    "no prompt": b"{}",
    "ids within ids": b'{"prompt":[[[1]]]}',
    "many prompts": b'{"prompt":[' + b'"x",' * 5000 + b'"x"]}',
    "a message that is none": b'{"messages":[1,null,{"role":[]}]}',
    "a thousand members": b'{"prompt":"x",%b"z":1}' % b"".join(b'"a%d":1,' % n for n in range(2000)),
    "ours a thousand times": b'{"prompt":"x",%b"z":1}' % (b'"kv_transfer_params":{},' * 2000),
    "ours, escaped and deep": rb'{"prompt":"x","\u006bv_transfer_params":' + b"[" * 500 + b"]" * 500 + b"}",
}
PATHS = ("/v1/completions", "/v1/chat/completions")


def assert_told(answer: Answer) -> None:
    """A 4xx that says what is wrong, as OpenAI's clients read it."""
    assert answer.status in (400, 404, 422), answer
    error = answer.json["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert 0 < len(error["message"]) < 1000


@pytest.fixture(scope="module")
def bodies() -> Iterator[Any]:
    """Post a body to a gateway with a simulated pod, on a loop of its own."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        ready, over = loop.create_future(), asyncio.Event()

        async def hold() -> None:
            async with fleet(1) as (front, _):
                ready.set_result(front)
                await over.wait()

        task = loop.create_task(hold())
        front: Front = runner.run(asyncio.wait_for(ready, 10))
        yield lambda path, body: runner.run(front.post(path, body))
        over.set()
        runner.run(asyncio.wait_for(task, 10))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_request_is_refused_in_so_many_words(bodies: Any, body: bytes, path: str) -> None:
    answer = bodies(path, body)
    assert_told(answer)
    assert "x-gateway-pod" not in answer.headers
    assert answer.json["error"]["code"] in ("invalid_json", "invalid_body", "invalid_value")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
def test_what_is_odd_is_judged_by_the_gateway_or_by_the_pod(bodies: Any, body: bytes, path: str) -> None:
    answer = bodies(path, body)
    if answer.status != 200:
        assert_told(answer)


WRONG: list[bytes] = [
    b"null",
    b"true",
    b"-1",
    b"1.5",
    b"1e999",
    b'"x"',
    rb'"\ud800"',
    b"[]",
    b"[null]",
    b"{}",
    b'{"a":[1]}',
]


@pytest.mark.parametrize("field", Peek.__struct_fields__)
def test_a_field_of_any_type_makes_no_fault(bodies: Any, field: str) -> None:
    for wrong in WRONG:
        for path, prompt in zip(PATHS, (b'"prompt":"x"', b'"messages":[{"role":"user","content":"x"}]'), strict=True):
            answer = bodies(path, b'{"max_tokens":1,%b,"%b":%b}' % (prompt, field.encode(), wrong))
            assert answer.status in JUDGED, (field, wrong, answer)
            if answer.status != 200:
                assert_told(answer)


@pytest.mark.parametrize("name", ["m" * MB, "a\0b", "a\r\nx-evil: 1", "猫😀", " ", "", "../../etc/passwd", "{id}"])
def test_a_model_of_any_name_is_not_found_and_said_so_briefly(bodies: Any, name: str) -> None:
    answer = bodies("/v1/completions", {"model": name, "prompt": "x"})
    assert_told(answer)
    assert answer.json["error"]["code"] == "model_not_found"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[]), max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
_NAMED = st.dictionaries(st.sampled_from([*Peek.__struct_fields__, "kv_transfer_params", "max_tokens", "stop"]), _JSON)


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, *settings().suppress_health_check]
)
@given(
    path=st.sampled_from([*PATHS, "/v1/embeddings", "/v1/responses", "/tokenize", "/v1/rerank"]), body=_NAMED | _JSON
)
def test_any_json_is_answered_without_a_fault(bodies: Any, path: str, body: Any) -> None:
    answer = bodies(path, json.dumps(body).encode())
    assert answer.status in JUDGED, answer
    if answer.status != 200:
        assert_told(answer)


# What a body may cost


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The pid and the URL of a gateway in a process of its own, which takes 4 MB."""
    folder = tmp_path_factory.mktemp("gateway")
    config = {"limits": {"max_body": 4 * MB}}
    with pod(folder) as (_, port), command(folder, {"pods": [spec(port)], **config}) as (gateway, url):
        yield gateway.pid, url


def packed(size: int, level: int) -> bytes:
    """Noise that does not get smaller, or zeros that get a thousand times smaller."""
    noise = random.Random(1).randbytes(size) if level == 0 else bytes(size)
    return gzip.compress(noise, level)


HOW = {
    "told": b"Content-Length: %d\r\n" % (100 * MB),
    "chunked": b"Transfer-Encoding: chunked\r\n",
    "packed": b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n",
    "bomb": b"Content-Length: %d\r\nContent-Encoding: gzip\r\n",
}


def send(url: str, how: str) -> bytes:
    """Post a hundred megabytes; the answer. Ends at the latest when all has been sent."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    pieces = [packed(100 * MB, 9)] if how == "bomb" else [b"x" * MB] * 100
    told = HOW[how] % len(pieces[0]) if how == "bomb" else HOW[how]
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\n%b\r\n" % told)
        try:
            for piece in pieces:
                client.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in told else piece)
        except ConnectionError:
            pass  # it has heard enough
        return client.recv(65536)


def test_a_hundred_megabytes_are_refused_and_not_kept(process: tuple[int, str]) -> None:
    pid, url = process
    before, most, over = resident_bytes(pid), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, resident_bytes(pid))

    watching = threading.Thread(target=watch)
    watching.start()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(send, [url] * 8, [*HOW, *HOW]))
    over.set()
    watching.join()
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 413"] * 8
    assert all(b'"code":"body_too_large"' in answer for answer in answers)
    assert most - before < 64 * MB, most - before


LARGE = {
    "a long text": b'{"prompt":"%b"}' % (b"x" * 4 * MB),
    "escapes": b'{"prompt":"%b"}' % (rb"\u0041" * (4 * MB // 6)),
    "quotes": b'{"prompt":"%b"}' % (rb"\"" * (2 * MB)),
    "ids": b'{"prompt":[%b1]}' % (b"1234," * (2 * MB // 5)),
    "brackets": b'{"prompt":"x","x":%b' % (b"[" * 4 * MB),
    "objects": b'{"prompt":"x","x":[%b1]}' % (b'{"a":{}},' * (4 * MB // 9)),
    "members": b'{"prompt":"x",%b"b":2}' % (b'"a":1,' * (4 * MB // 6)),
    "members named as ours": b'{"prompt":"x",%b"b":2}' % (b'"kv_transfer_params":1,' * (4 * MB // 23)),
    "members in escapes": b'{"prompt":"x",%b"b":2}' % (rb'"\u006b":1,' * (4 * MB // 11)),
    "one digit after the other": b'{"prompt":"x","n":%b}' % (b"9" * 4 * MB),
    "a long model": b'{"prompt":"x","model":"%b"}' % (b"m" * 4 * MB),
    "white space": b'{"prompt":"x",%b"b":2}' % (b" " * 4 * MB),
    "messages": b'{"messages":[%b{"role":"user","content":"x"}]}'
    % (b'{"role":"user","content":"x"},' * (4 * MB // 30)),
}
STEP_S = 0.05


@contextmanager
def longest_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """CPU seconds of the longest step of asyncio's own loop: what others wait for, however busy the machine is."""
    run, longest = asyncio.Handle._run, [0.0]

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.disable()  # what pytest keeps is none of the gateway's
    try:
        yield longest
    finally:
        gc.enable()


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE.keys())
def test_nobody_waits_long_for_a_body_of_megabytes(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    path = PATHS["messages" in str(body[:20])]

    async def measured() -> float:
        ids = says({"tokens": list(range(1000))})
        async with scripted(completions=says({}), chat=says({}), tokenize=ids) as taking, serving([taking]) as front:
            with longest_step(monkeypatch) as longest:
                answer = await front.post(path, body)
                assert answer.status in JUDGED, answer
            return longest[0]

    # What the gateway does in one step it does each time; what else the machine does is not its own.
    assert min(asyncio.run(measured()) for _ in range(3)) < STEP_S
