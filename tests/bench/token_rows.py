"""What it costs to know a conversation's ids, turn by turn, and how long tokenizing makes others wait.

A conversation about a text of 64K tokens grows by equal turns to 128K. The turn `short` follows it.
"""

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import uvloop
from tokenizers import Tokenizer as Backend

from gateway.cli import tune_interpreter
from gateway.openai import peek
from gateway.tokens import Prompt
from gateway.tokens.chat import ChatFields
from gateway.tokens.give_way import give_way
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model
from tests.bench.rows import Row, collected, row
from tests.bench.token_gateway import Tokenizing, renderer, tokenizing
from tests.bench.token_workload import TURNS, Workload

T = TypeVar("T")
SHOWN: Final = {1: "turn1", 10: "turn10", TURNS: "turn20", TURNS + 1: "short"}
"""Of a conversation's turns, with their rows' names."""

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
    tokens, idle_s = (_QUICK_TOKENS, _QUICK_IDLE_S) if quick else (_TOKENS, _IDLE_S)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        stack.enter_context(_as_served())
        workload = Workload(quick=quick)
        url = stack.enter_context(renderer(workload.files, Path(logs))) if peers else None
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
    measures = {f"{turn}.cpu": ("µs", "tokenized whole") for turn in SHOWN.values()}
    measures |= {f"{turn}.latency": ("µs", "vLLM POST /tokenize") for turn in SHOWN.values()}
    measures |= {f"{turn}.path.cpu": ("µs", "") for turn in ("turn20", "short", "again")}
    measures |= {f"stall.{part}": ("ms", "idle") for part in ("p50", "p99", "max")}
    return [
        row(f"tokens.{measure}", unit, ours[measure], peer, theirs.get(measure, ()))
        for measure, (unit, peer) in measures.items()
    ]


def turn_costs(files: Path, bodies: list[bytes]) -> Measured:
    """CPU time from a body's bytes to its ids, all threads, µs; the peer renders and tokenizes all of every turn."""
    tokenizer = LocalTokenizer(find_model(str(files)))
    backend = Backend.from_file(str(files / "tokenizer.json"))
    tokenizer.render(_fields(bodies[0]))  # compiles the template, as the probes of a pod that comes up do
    ours, theirs = {}, {}
    for turn, body in enumerate(bodies, 1):
        began = time.process_time_ns()
        made = tokenizer.encode_chat(_fields(body))
        cpu_us = (time.process_time_ns() - began) / 1e3
        if turn in SHOWN:
            ours[f"{SHOWN[turn]}.cpu"] = cpu_us
            began = time.process_time_ns()
            text = tokenizer.render(_fields(body))
            (whole,) = backend.encode_batch_fast([text], add_special_tokens=False)
            ids = whole.ids
            theirs[f"{SHOWN[turn]}.cpu"] = (time.process_time_ns() - began) / 1e3
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
        for turn, body in enumerate(bodies, 1):
            made, latency_us, cpu_us = await _timed(here, body)
            if turn in SHOWN:
                ours[f"{SHOWN[turn]}.latency"] = latency_us
                ours[f"{SHOWN[turn]}.path.cpu"] = cpu_us
            if there and turn in SHOWN:
                told, theirs[f"{SHOWN[turn]}.latency"], _ = await _timed(there, body)
                assert told.sequences == made.sequences
        again = [(await _timed(here, bodies[-1]))[2] for _ in range(_AGAIN)]
        ours["again.path.cpu"] = statistics.median(again)
    return ours, theirs


async def _timed(tokens: Tokenizing, body: bytes) -> tuple[Prompt, float, float]:
    """The prompt, and how long it took in µs of time and of CPU time."""
    began, busy = time.perf_counter_ns(), time.process_time_ns()
    prompt = await tokens.tokenize(body)
    return prompt, (time.perf_counter_ns() - began) / 1e3, (time.process_time_ns() - busy) / 1e3


async def _stalls(files: Path, bodies: list[bytes], idle_s: float) -> Measured:
    """How late a timer of a millisecond is, in ms: while all bodies are tokenized at once, and while nothing is."""
    async with tokenizing(files, "local") as here:
        asks = [peek(body) for body in bodies]  # bodies do not end at one moment
        idle, _ = await _ticks(asyncio.sleep(idle_s))
        work = asyncio.gather(*(here.asked(ask, body) for ask, body in zip(asks, bodies, strict=True)))
        loaded, prompts = await _ticks(work)
        assert all(prompt.reused < (prompt.tokens or 0) / 10 for prompt in prompts)  # what begins a message
    return _late(loaded), _late(idle)


async def _ticks(work: Awaitable[T]) -> tuple[list[float], T]:
    """How late each tick is until the work is done, in ms, and what the work came to."""
    late: list[float] = []
    ticker = asyncio.create_task(_tick(late))
    done = await work
    ticker.cancel()
    return late, done


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append((time.perf_counter() - due) * 1e3)


def _late(ticks: list[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(ticks, n=100, method="inclusive")
    return {"stall.p50": percentiles[49], "stall.p99": percentiles[98], "stall.max": max(ticks)}


@contextmanager
def _as_served() -> Iterator[None]:
    """The interpreter and the library's threads as in the gateway's process, whatever training is to come."""
    collect, hand_over_s = gc.get_threshold(), sys.getswitchinterval()
    tune_interpreter()
    give_way()
    yield
    gc.set_threshold(*collect)
    sys.setswitchinterval(hand_over_s)
