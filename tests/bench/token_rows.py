"""What it costs to know a conversation's ids, turn by turn, and how long tokenizing makes others wait.

A conversation grows by equal parts to 128K tokens: the hardest case for what remembers its beginning, since its last
turn brings as much that is new as every other.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from tokenizers import Tokenizer as Backend

from gateway.openai import peek
from gateway.tokens.chat import ChatFields
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model
from tests.bench.rows import Row, collected, row
from tests.bench.token_gateway import renderer, tokenizing
from tests.bench.token_workload import TURNS, Workload

SHOWN: Final = (1, 10, TURNS)
_TOKENS: Final = 128_000
_QUICK_TOKENS: Final = 8_000
_AGAIN: Final = 30
_AT_ONCE: Final = 10
_IDLE_S: Final = 2.0
_QUICK_IDLE_S: Final = 0.2
_TICK_S: Final = 0.001

Measured = tuple[dict[str, float], dict[str, float]]
"""Ours and the peer's of one round, by measure."""


def rows(*, rounds: int, quick: bool, peers: bool) -> list[Row]:
    """Every round has conversations of its own, and begins with nothing remembered."""
    workload = Workload(quick=quick)
    tokens, idle_s = (_QUICK_TOKENS, _QUICK_IDLE_S) if quick else (_TOKENS, _IDLE_S)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as logs, _renderer(workload, Path(logs), peers=peers) as url:
        for number in range(rounds):
            bodies = workload.conversation(number, tokens)
            cold = [workload.conversation(rounds + number * _AT_ONCE + at, tokens)[-1] for at in range(_AT_ONCE)]
            parts = (
                turn_costs(workload.files, bodies),
                uvloop.run(_latencies(workload.files, bodies, url)),
                uvloop.run(_stalls(workload.files, cold, idle_s)),
            )
            ours.append({name: value for part, _ in parts for name, value in part.items()})
            theirs.append({name: value for _, part in parts for name, value in part.items()})
    return _rows(collected(ours), collected(theirs))


def _rows(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> list[Row]:
    measures = {f"turn{turn}.cpu": ("µs", "tokenized whole") for turn in SHOWN}
    measures |= {f"turn{turn}.latency": ("µs", "vLLM POST /tokenize") for turn in SHOWN}
    measures |= {"path.cpu": ("µs", ""), "again.cpu": ("µs", "")}
    measures |= {f"stall.{part}": ("ms", "idle") for part in ("p50", "p99", "max")}
    return [
        row(f"tokens.{measure}", unit, ours[measure], peer, theirs.get(measure, ()))
        for measure, (unit, peer) in measures.items()
    ]


def turn_costs(files: Path, bodies: list[bytes]) -> Measured:
    """CPU time of a turn from its body's bytes to its ids, all threads, µs; the peer renders and tokenizes all of it."""
    tokenizer = LocalTokenizer(find_model(str(files)))
    backend = Backend.from_file(str(files / "tokenizer.json"))
    ours, theirs = {}, {}
    for turn, body in enumerate(bodies, 1):
        began = time.process_time_ns()
        made = tokenizer.encode_chat(_fields(body))
        ours[f"turn{turn}.cpu"] = (time.process_time_ns() - began) / 1e3
        if turn in SHOWN:
            began = time.process_time_ns()
            text = tokenizer.render(_fields(body))
            (whole,) = backend.encode_batch_fast([text], add_special_tokens=False)
            ids = whole.ids
            theirs[f"turn{turn}.cpu"] = (time.process_time_ns() - began) / 1e3
            assert made.ids is not None
            assert made.ids.tolist() == ids
    return ours, theirs


def _fields(body: bytes) -> ChatFields:
    return msgspec.json.decode(body, type=ChatFields)


async def _latencies(files: Path, bodies: list[bytes], url: str | None) -> Measured:
    """A turn's whole way through the gateway's tokenizer, in µs of time; the peer asks a pod, the same way."""
    ours, theirs = {}, {}
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(tokenizing(files, "local"))
        there = await stack.enter_async_context(tokenizing(files, "pod", url)) if url else None
        cpu: list[float] = []
        for turn, body in enumerate(bodies, 1):
            began, busy = time.perf_counter_ns(), time.process_time_ns()
            made = await here.tokenize(body)
            ours[f"turn{turn}.latency"] = (time.perf_counter_ns() - began) / 1e3
            cpu.append((time.process_time_ns() - busy) / 1e3)
            if there and turn in SHOWN:
                began = time.perf_counter_ns()
                told = await there.tokenize(body)
                theirs[f"turn{turn}.latency"] = (time.perf_counter_ns() - began) / 1e3
                assert told.sequences == made.sequences
        ours["path.cpu"] = cpu[-1]
        again = []
        for _ in range(_AGAIN):
            busy = time.process_time_ns()
            await here.tokenize(bodies[-1])
            again.append((time.process_time_ns() - busy) / 1e3)
        ours["again.cpu"] = statistics.median(again)
    return ours, theirs


async def _stalls(files: Path, bodies: list[bytes], idle_s: float) -> Measured:
    """How late a timer of a millisecond is, in ms: while all bodies are tokenized at once, and while nothing is done."""
    async with tokenizing(files, "local") as here:
        asks = [peek(body) for body in bodies]  # bodies do not end at one moment
        idle = await _ticks(asyncio.sleep(idle_s))
        loaded = await _ticks(asyncio.gather(*(here.asked(ask, body) for ask, body in zip(asks, bodies, strict=True))))
    return _late(loaded), _late(idle)


async def _ticks(work: Awaitable[object]) -> list[float]:
    """How late each tick is until the work is done, in ms."""
    late: list[float] = []
    ticker = asyncio.create_task(_tick(late))
    await work
    ticker.cancel()
    return late


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append((time.perf_counter() - due) * 1e3)


def _late(ticks: list[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(ticks, n=100, method="inclusive")
    return {"stall.p50": percentiles[49], "stall.p99": percentiles[98], "stall.max": max(ticks)}


def _renderer(workload: Workload, logs: Path, *, peers: bool) -> AbstractContextManager[str | None]:
    return renderer(workload.files, logs) if peers else nullcontext()
