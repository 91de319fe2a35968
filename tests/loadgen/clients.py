"""What the tests look at a pod with: a subscriber, a replay client, and completions in one line."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio

from loadgen.pod import SimulatedPod

DEADLINE_S = 10.0
_PROBE = b"is anybody there?"


async def complete(http: aiohttp.ClientSession, pod: SimulatedPod, prompt: Any, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, **fields}
    async with http.post(f"{pod.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 (a pod's state is looked at, it tells nobody)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def subscribed(pod: SimulatedPod, rank: int = 0) -> AsyncIterator[zmq.asyncio.Socket]:
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.connect(pod.events[rank])
        sub.subscribe(b"")
        await attached(sub, pod, rank)
        yield sub


async def attached(sub: zmq.asyncio.Socket, pod: SimulatedPod, rank: int = 0) -> None:
    """Wait until the publisher has seen the subscription, which a batch that arrives proves."""
    probe = _PROBE + uuid.uuid4().bytes
    async with asyncio.timeout(DEADLINE_S):
        while True:
            pod.publish_payload(probe, rank)
            while await sub.poll(10):
                if (await sub.recv_multipart())[2] == probe:
                    return


async def next_batch(sub: zmq.asyncio.Socket) -> tuple[int, list[Any]]:
    while True:
        async with asyncio.timeout(DEADLINE_S):
            _, seq, payload = await sub.recv_multipart()
        if not payload.startswith(_PROBE):
            return int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload)


async def replayed(address: str, start: int = 0) -> list[list[bytes]]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.rcvhwm = 0
        dealer.connect(address)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        frames = []
        async with asyncio.timeout(DEADLINE_S):
            while True:
                frames.append(await dealer.recv_multipart())
                if frames[-1][-2] == b"\xff" * 8:
                    return frames


async def published(pod: SimulatedPod, rank: int = 0) -> list[Any]:
    """Return every event the pod has published since it started."""
    frames = await replayed(pod.replays[rank])
    return [event for *_, payload in frames[:-1] for event in msgspec.msgpack.decode(payload)[1]]


def residents(events: Iterable[dict[str, Any]], medium: str) -> set[Any]:
    """Return what events in map form leave cached, counting copies."""
    copies: Counter[Any] = Counter()
    for event in events:
        if event["type"] == "AllBlocksCleared":
            copies = copies if medium == "CPU" else Counter()
        elif event["medium"] == medium:
            step = 1 if event["type"] == "BlockStored" else -1
            for block_hash in event["block_hashes"]:
                copies[block_hash] += step
                assert copies[block_hash] >= 0, "removed more often than stored"
    return {block_hash for block_hash, count in copies.items() if count}
