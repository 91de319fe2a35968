"""The ladder, climbed: two pods are asked, one request at a time.

At each length three legs. *computed*: a prompt nobody has seen, without a source; nothing may come from the peer, which
is the control of all the others. *local*: the same prompt again. *pull*: another prompt, which the source has computed
before and the consumer has never seen, with the source named; something has to come.

A prompt reaches the source's CPU tier, from which it is pulled, some time after its answer. How long that is nobody
says, so a pull that brings less than most of the prompt is measured again after a longer pause, which is kept for all
that come after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from config.addresses import join_address
from gateway.calibrate.ladder import Turn, ladder, turns
from gateway.calibrate.result import Rung
from gateway.direct import Completed, DirectPod, Pulled, connection_refused, fresh_prompt, pull
from gateway.errors import PodError, PodTimeout
from gateway.pull_counters import Counters, moved
from gateway.served import Served

T = TypeVar("T")
Tell = Callable[[str], None]

_PAUSES_S: Final = (0.1, 0.3, 1.0, 3.0)
"""What is tried for a prompt to reach the CPU tier of a pod that does nothing else."""

_SETTLED_S: Final = 0.1
"""A request that has just been answered may be counted as running for a moment more."""

_MOST: Final = 0.5
"""Share of a prompt that a pull has to bring to be one: the rest is less than a block, but on a small ladder."""


class CalibrationFailed(Exception):
    """One line: why nothing can be said of these pods."""


class _TimeIsUp(CalibrationFailed):
    def __init__(self) -> None:
        super().__init__(
            "time was up before each length was measured once: allow more with --max-time, or fewer --lengths"
        )


class Measured(Struct):
    """What came of it. `first_pulls` are by consumer, in seconds."""

    model: str
    rungs: list[Rung]
    first_pulls: tuple[float, float]
    warnings: list[str]


class Climb:
    """One calibration of two pods. Every call has the pods' deadline, all together about `max_time` seconds."""

    def __init__(self, pods: Sequence[DirectPod], *, max_time: float, tell: Tell) -> None:
        self._pods = pods
        self._tell = tell
        self._until = time.monotonic() + max_time
        self._model = ""
        self._pause = 0
        self._warnings: list[str] = []
        self._disturbed = 0
        self._sent = [0, 0]
        self._seen: list[Counters] = []
        self._deaf: set[int] = set()  # sources whose P2P port does not answer from here

    async def measure(self, wanted: Sequence[int] | None, rounds: int, model: str | None) -> Measured:
        """All rounds, or as many as there is time for. Raises CalibrationFailed; LadderError for lengths that
        do not fit.
        """
        lengths = await self._prepare(wanted, model)
        self._seen = [await self._counters(i) for i in (0, 1)]
        began = list(self._seen)
        await self._knock()
        firsts = await self._meet(lengths)
        rungs: list[Rung] = []
        for turn in turns(lengths, rounds):
            try:
                self._in_time()
                rungs.append(await self._rung(turn))
            except _TimeIsUp:
                self._cut_short(turn, lengths, rungs)
                break
        await self._note_others(began)
        return Measured(self._model, rungs, firsts, self._warnings)

    async def _prepare(self, wanted: Sequence[int] | None, model: str | None) -> tuple[int, ...]:
        served = [await self._asked(pod.models()) for pod in self._pods]
        self._model = self._shared(served, model)
        cards = [card for models in served for card in models if card.id == self._model]
        return ladder(wanted, min((card.max_model_len for card in cards if card.max_model_len), default=None))

    def _shared(self, served: Sequence[Sequence[Served]], model: str | None) -> str:
        """The model that is asked for, else the first that both serve."""
        names = [[card.id for card in models] for models in served]
        for pod, own in zip(self._pods, names, strict=True):
            if not own:
                raise CalibrationFailed(f"{pod.url} serves no model")
            if model is not None and model not in own:
                raise CalibrationFailed(f"{pod.url} does not serve {model}, but {', '.join(own)}")
        found = model or next((name for name in names[0] if name in names[1]), None)
        if found is None:
            one, other = self._pods
            raise CalibrationFailed(
                f"{one.url} serves {', '.join(names[0])} and {other.url} {', '.join(names[1])}: pods pull from each"
                " other only with the same model, under the same string"
            )
        return found

    async def _knock(self) -> None:
        """A pull from a port where nobody listens takes a consumer up to a minute: try it once only."""
        for i, pod in enumerate(self._pods):
            if pod.p2p is None:
                raise CalibrationFailed(f"{pod.url}: where it serves pulls is not known: name it with --p2p")
            if (refused := await connection_refused(pod.p2p)) is not None:
                self._deaf.add(i)
                where = join_address(*pod.p2p)
                self._tell(f"warning: nothing answers at {where}, where {pod.url} is to serve pulls: {refused}")

    async def _meet(self, lengths: Sequence[int]) -> tuple[float, float]:
        """Have both pods compute the longest prompt, and pull from each other: what is only slow the first time."""
        for i, pod in enumerate(self._pods):
            self._tell(f"warming up {pod.url}: {lengths[-1]:,} tokens")
            await self._complete(i, fresh_prompt(lengths[-1]))
        firsts = []
        for consumer in (0, 1):
            first = await self._pull(1 - consumer, consumer, lengths[0])
            self._tell(f"first pull of {self._pods[consumer].url}: {1000 * first.answer.seconds:.0f} ms")
            firsts.append(first.answer.seconds)
        return firsts[0], firsts[1]

    async def _rung(self, turn: Turn) -> Rung:
        if turn.pull_first:
            pulled = await self._pull(turn.source, turn.consumer, turn.tokens)
            computed, local = await self._control(turn)
        else:
            computed, local = await self._control(turn)
            pulled = await self._pull(turn.source, turn.consumer, turn.tokens)
        self._tell(
            f"round {turn.round + 1}, {turn.tokens:,} tokens, {self._pods[turn.consumer].url} pulls:"
            f" computed {1000 * computed.seconds:.1f} ms, pull {1000 * pulled.answer.seconds:.1f},"
            f" local {1000 * local.seconds:.1f}"
        )
        return Rung(
            turn.source,
            turn.consumer,
            turn.tokens,
            recompute=computed.seconds,
            pull=pulled.answer.seconds,
            local=local.seconds,
            pulled_tokens=min(pulled.tokens, turn.tokens - 1),
            moved_bytes=pulled.moved.bytes,
        )

    async def _control(self, turn: Turn) -> tuple[Completed, Completed]:
        prompt = fresh_prompt(turn.tokens)
        computed = await self._complete(turn.consumer, prompt)
        local = await self._complete(turn.consumer, prompt)
        await self._nothing_moved(turn.consumer, computed)
        return computed, local

    async def _nothing_moved(self, consumer: int, computed: Completed) -> None:
        """What no source was named for has to be computed, or the other legs say nothing."""
        before, now = self._seen[consumer], await self._counters(consumer)
        came, pod = moved(before, now), self._pods[consumer]
        if came.anything or computed.cached_tokens:
            tokens = came.tokens or computed.cached_tokens
            what = f"{tokens:.0f} tokens" if tokens else f"{came.bytes:.0f} bytes"
            raise CalibrationFailed(
                f"{pod.url}: the control leg moved {what}, though no source was named for its fresh prompt."
                " Either other requests pull meanwhile, then calibrate while the pods are idle; or what answers there"
                " is no pod but something that names sources itself"
            )
        self._seen[consumer] = now

    async def _pull(self, source: int, consumer: int, tokens: int) -> Pulled:
        """One that brought most of its prompt. Raises CalibrationFailed where none does."""
        while True:
            prompt = fresh_prompt(tokens)
            await self._complete(source, prompt)
            await asyncio.sleep(_PAUSES_S[self._pause])
            self._sent[consumer] += tokens
            pulled = await self._asked(pull(self._pods[source], self._pods[consumer], self._model, prompt))
            self._seen[consumer] = await self._counters(consumer)
            if pulled.happened and pulled.tokens >= _MOST * tokens:
                return pulled
            if self._pause + 1 == len(_PAUSES_S) or (not pulled.happened and source in self._deaf):
                raise CalibrationFailed(self._why_nothing(source, consumer, pulled, tokens))
            self._pause += 1
            self._in_time()

    def _why_nothing(self, source: int, consumer: int, pulled: Pulled, tokens: int) -> str:
        one, other = self._pods[source], self._pods[consumer]
        where = "nowhere" if one.p2p is None else join_address(*one.p2p)
        if pulled.happened or pulled.tokens:
            return (
                f"{other.url} pulled only {pulled.tokens} of {tokens} tokens from {one.url}: its CPU tier, or that of"
                " the source, may be too small for the prompt; give them more with cpu_bytes_to_use, or try --lengths"
            )
        return (
            f"{other.url} was told to pull from {one.url} at {where}, and pulled no bytes. Usual causes: the source"
            " was configured with another host or port than that string; the pods differ in the model's path, the block"
            " size, PYTHONHASHSEED or the data type; one has no P2P or no CPU tier; it is a router and no pod."
            " `p2p-gateway check` finds out which"
        )

    async def _complete(self, which: int, prompt: list[int]) -> Completed:
        self._sent[which] += len(prompt)
        return await self._asked(self._pods[which].complete(self._model, prompt))

    async def _counters(self, which: int) -> Counters:
        """Those of now; requests that run at this moment are not ours."""
        counters = await self._asked(self._pods[which].counters())
        if counters.running + counters.waiting:
            await asyncio.sleep(_SETTLED_S)
            counters = await self._asked(self._pods[which].counters())
        if busy := counters.running + counters.waiting:
            self._disturbed += 1
            if self._disturbed == 1:
                url = self._pods[which].url
                self._tell(f"warning: {url} is not idle, {busy} requests run or wait: times will be off")
        return counters

    async def _note_others(self, began: Sequence[Counters]) -> None:
        if self._disturbed:
            self._warnings.append(f"pods were not idle at {self._disturbed} looks: the times include others' work")
        for pod, before, sent in zip(self._pods, began, self._sent, strict=True):
            after = await self._asked(pod.counters())
            if before.prompt_tokens is None or after.prompt_tokens is None:
                continue
            others = int(after.prompt_tokens - before.prompt_tokens) - sent
            if others > 0:
                self._warnings.append(f"{pod.url} also answered others: {others:,} prompt tokens beside our {sent:,}")

    def _in_time(self) -> None:
        """Raises _TimeIsUp."""
        if time.monotonic() > self._until:
            raise _TimeIsUp

    def _cut_short(self, turn: Turn, lengths: Sequence[int], rungs: Sequence[Rung]) -> None:
        measured = {(rung.source, rung.tokens) for rung in rungs}
        if len(measured) < 2 * len(lengths):
            raise _TimeIsUp
        self._warnings.append(f"time was up in round {turn.round + 1}")

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except PodTimeout as error:
            reason = f"{error.message}: a pull from a peer that hangs, or --timeout is too short"
            raise CalibrationFailed(reason) from error
        except PodError as error:
            raise CalibrationFailed(error.message) from error
