"""A pod with nothing behind it: raw HTTP over asyncio, as cheap as Python allows, so that routers are what is measured.

Prints `{"http": PORT, "events": PORT, "blocks": NUMBER}` when it listens and ends when its standard input does. Serves
/health, /v1/models, /metrics, /kv_event_sources, /tokenize, /v1/chat/completions/render and completions, as JSON or,
with `"stream":true`, as `max_tokens` SSE chunks, one every 5 ms. To whoever subscribes it publishes one stored prompt
of 32K tokens, the beginning of which is what every prompt tokenizes to, so that decisions are made on a match.

With the argument `plain` it refuses to render, as vLLM does unless it is started with `--enable-scale-out`. With
`model DIRECTORY` it tokenizes as that model does, and what it publishes are the beginnings of the conversations that
are numbered from 0 on.
"""

import asyncio
import re
import sys
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec
import uvloop
import zmq

from index import block_keys, root_key
from tests.bench.chats import MODEL
from tests.bench.index_ours import frame
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, STORE_BLOCKS, Store

CHUNK_INTERVAL_S: Final = 0.005
_BYTES_PER_TOKEN: Final = 4
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_MAX_TOKENS: Final = re.compile(rb'"max_tokens":\s*(\d+)')
_STREAM: Final = re.compile(rb'"stream":\s*true')


def answer(body: object, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole HTTP answer."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    event = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
    return _chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")


def completed(tokens: int, cached: int) -> bytes:
    """A chat's answer, the prompt of which has so many tokens."""
    message = {"role": "assistant", "content": "an answer of the backend"}
    usage = {
        "prompt_tokens": tokens,
        "completion_tokens": 4,
        "total_tokens": tokens + 4,
        "prompt_tokens_details": {"cached_tokens": min(cached, max(0, tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS)},
    }
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    made = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": MODEL}
    return answer({**made, "choices": [choice], "usage": usage})


_CARD: Final = {
    "id": MODEL,
    "object": "model",
    "created": 1,
    "owned_by": "vllm",
    "root": MODEL,
    "max_model_len": 131072,
}
_METRICS: Final = b"".join(
    b'%b{engine="0",model_name="bench-model"} %b\n' % sample
    for sample in (
        (b"vllm:num_requests_waiting", b"0.0"),
        (b"vllm:num_requests_running", b"0.0"),
        (b"vllm:kv_cache_usage_perc", b"0.1"),
    )
)
_NOT_FOUND: Final = answer({"detail": "Not Found"}, status="404 Not Found")
_FORBIDDEN: Final = answer({"detail": "Forbidden"}, status="403 Forbidden")
_SSE_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_SSE_EVENT: Final = _event({"content": " word"}, None)
_SSE_END: Final = _event({}, "stop") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def pages(events: int) -> dict[bytes, bytes]:
    """What a pod answers to GET; `events` is the port of its event stream."""
    return {
        b"/health": answer(b""),
        b"/version": answer({"version": "0.32.0"}),
        b"/v1/models": answer({"object": "list", "data": [_CARD]}),
        b"/metrics": answer(_METRICS, "text/plain"),
        b"/kv_event_sources": answer({"0": {"endpoint": f"tcp://127.0.0.1:{events}", "topic": ""}}),
    }


def tokenized(ids: Sequence[int]) -> bytes:
    """What /tokenize answers for a prompt of these tokens."""
    return answer({"count": len(ids), "max_model_len": 131072, "tokens": ids, "token_strs": None})


def rendered(ids: Sequence[int]) -> bytes:
    """What /v1/chat/completions/render answers for a prompt of these tokens."""
    sampling: dict[str, Any] = {}
    body = {"request_id": "render-0", "model": MODEL, "token_ids": ids, "sampling_params": sampling}
    return answer({**body, "stream": False})


class Prompts(Protocol):
    """Whole answers to the bodies of requests, and what is cached when the backend starts, as token ids."""

    cached: "Sequence[array[int]]"

    def tokenized(self, body: bytes) -> bytes: ...

    def rendered(self, body: bytes) -> bytes: ...

    def completed(self, body: bytes) -> bytes: ...


class ByLength:
    """Prompts of which nothing counts but how long they are: each is the beginning of one of 32K tokens."""

    def __init__(self) -> None:
        self.cached = [array("I", range(PROMPT_BLOCKS * BLOCK_TOKENS))]

    def tokenized(self, body: bytes) -> bytes:
        return _tokenized(_tokens(body))

    def rendered(self, body: bytes) -> bytes:
        return _rendered(_tokens(body))

    def completed(self, body: bytes) -> bytes:
        return _completed(_tokens(body))


@lru_cache
def _tokenized(tokens: int) -> bytes:
    return tokenized(list(range(tokens)))


@lru_cache
def _rendered(tokens: int) -> bytes:
    return rendered(list(range(tokens)))


@lru_cache
def _completed(tokens: int) -> bytes:
    return completed(tokens, tokens)


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, answers at once."""

    def __init__(self, to_get: dict[bytes, bytes], prompts: Prompts, *, renders: bool = True) -> None:
        self._to_get = to_get
        self._prompts = prompts
        self._renders = renders
        self._received = bytearray()
        self._chunks_left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def connection_lost(self, _: Exception | None) -> None:
        self._chunks_left = 0

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        length = _LENGTH.search(head)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) < whole:
            return
        body = bytes(self._received[end + 4 : whole])
        del self._received[:whole]
        method, path = (*head.split(b" ", 2), b"")[:2]  # sglang-router first tries another protocol
        self._answer(path, body) if method == b"POST" else self._transport.write(self._to_get.get(path, _NOT_FOUND))

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/tokenize":
            self._transport.write(self._prompts.tokenized(body))
        elif path.endswith(b"/render"):
            self._transport.write(self._prompts.rendered(body) if self._renders else _FORBIDDEN)
        elif not path.endswith(b"/completions"):
            self._transport.write(_NOT_FOUND)
        elif _STREAM.search(body) is None:
            self._transport.write(self._prompts.completed(body))
        else:
            asked = _MAX_TOKENS.search(body)
            self._chunks_left = int(asked[1]) if asked else 16
            self._transport.write(_SSE_HEAD)
            self._next_chunk()

    def _next_chunk(self) -> None:
        if not self._chunks_left:
            return
        self._chunks_left -= 1
        if not self._chunks_left:
            self._transport.write(_SSE_END)
            return
        self._transport.write(_SSE_EVENT)
        asyncio.get_running_loop().call_later(CHUNK_INTERVAL_S, self._next_chunk)


def _tokens(body: bytes) -> int:
    """By the length of the messages, so that it is the same whoever asks, and for what."""
    length = body.rfind(b"]") - max(0, body.find(b'"messages"'))
    return min(max(1, length // _BYTES_PER_TOKEN), PROMPT_BLOCKS * BLOCK_TOKENS)


def _stores(prompts: "Iterable[array[int]]") -> Iterator[Store]:
    """The prompts' blocks, each once, with hashes by content."""
    known: set[int] = set()
    for ids in prompts:
        hashes = block_keys(ids, BLOCK_TOKENS, root_key(MODEL, BLOCK_TOKENS))
        begin = next((at for at, each in enumerate(hashes) if each not in known), len(hashes))
        known.update(hashes)
        for at in range(begin, len(hashes), STORE_BLOCKS):
            part = hashes[at : at + STORE_BLOCKS]
            tokens = ids[at * BLOCK_TOKENS : (at + len(part)) * BLOCK_TOKENS]
            yield Store(0, hashes[at - 1] if at else None, part, tokens)


def _publish(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
    """To every subscriber all events, from sequence number 0 on; to those before, that is a restart."""
    while True:
        if socket.recv().startswith(b"\x01"):
            for number, payload in enumerate(frames):
                socket.send_multipart([b"", number.to_bytes(8, "big"), payload])


async def serve(prompts: Prompts, *, renders: bool) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
    socket.set(zmq.XPUB_VERBOSE, 1)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, 0)  # it holds one copy of the events for a subscriber
    events = socket.bind_to_random_port("tcp://127.0.0.1")
    stores = list(_stores(prompts.cached))
    frames = [frame(store) for store in stores]
    threading.Thread(target=_publish, args=[socket, frames], daemon=True).start()
    served = pages(events)
    server = await loop.create_server(
        lambda: Connection(served, prompts, renders=renders), "127.0.0.1", 0, backlog=1024
    )
    told = {
        "http": server.sockets[0].getsockname()[1],
        "events": events,
        "blocks": sum(len(store.hashes) for store in stores),
    }
    sys.stdout.write(f"{msgspec.json.encode(told).decode()}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


def _prompts(how: Sequence[str]) -> Prompts:
    if "model" not in how:
        return ByLength()
    from tests.bench.backend_model import ByModel  # noqa: PLC0415 - what it imports takes time that others need not wait

    return ByModel(Path(how[how.index("model") + 1]))


if __name__ == "__main__":
    uvloop.run(serve(_prompts(sys.argv[1:]), renders="plain" not in sys.argv[1:]))
