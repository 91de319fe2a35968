"""Token ids from pods (`POST /tokenize`): one call for equal questions, few at once, and none to a pod that fails.

    equal question under way ──▶ its answer
    else ──▶ a place on the pod with the least to do ──▶ ids
                     └── fails ──▶ one more pod

Every call has its caller's deadline. Of a pod that failed several times in a row nothing is asked for a while
(`breaker`), so a tokenizer that is dead or saturated costs the first requests their deadline and the others nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from config.schema import Breaker as BreakerConfig
from config.schema import Tokens
from gateway.breaker import Breaker, State
from gateway.errors import PodError, PodRejected, PodTimeout
from gateway.pod import Pod
from gateway.tokens.prompt import TokenIds
from gateway.tokens.refusal import Reason
from gateway.upstream import PodApi, decoded
from index import Media

Pods = Callable[[], Sequence[Pod]]
"""Who could be asked, if there is something to ask."""

_TOKENS = b'"tokens":['
_LARGEST_ID = (1 << 32) - 1
_MOST_WAITING = 256  # callers; each has a deadline, so more would only pass theirs
_PODS_ASKED = 2  # one that just died must not cost the prefix term


class Unanswered(Exception):
    """No pod told the ids; `reason` is for counters. Never leaves the package."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class _Answer(Struct):
    tokens: list[int]


class _Placeholder(Struct):
    offset: int
    length: int


class _Features(Struct):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Placeholder]]


class _Rendered(Struct):
    token_ids: list[int]
    features: _Features | None = None


class Question(NamedTuple):
    """What is posted to a pod, where, and what reads its answer (with the pod's URL; raises PodRejected).

    `renders`: it goes to an endpoint that only some pods have.
    """

    body: bytes
    path: str
    read: Callable[[bytes, str], TokenIds]
    renders: bool = False


def tokenize(body: bytes) -> Question:
    """`POST /tokenize`: a text or a chat."""
    return Question(body, "/tokenize", _tokens)


def render(body: bytes, path: str) -> Question:
    """The request itself, for a pod that renders (vLLM's `--enable-scale-out`, 0.32): ids, and where its media are."""
    return Question(body, f"{path}/render", _rendered, renders=True)


def _tokens(answer: bytes, url: str) -> TokenIds:
    """The ids of an answer; numpy reads the usual form of it without making an int of each."""
    begin = answer.find(_TOKENS) + len(_TOKENS)
    end = answer.find(b"]", begin)
    if begin > len(_TOKENS) and begin < end:
        with suppress(ValueError, DeprecationWarning):  # not all of it is a list of numbers
            found = np.fromstring(answer[begin:end], np.int64, sep=",")
            if len(found) == answer.count(b",", begin, end) + 1 and found.min() >= 0 and found.max() <= _LARGEST_ID:
                ids = TokenIds("I")
                ids.frombytes(found.astype(np.uint32).tobytes())
                return ids
    return _ids(decoded(answer, _Answer, url).tokens, url)


def _rendered(answer: bytes, url: str) -> TokenIds:
    told = decoded(answer, _Rendered, url)
    ids = _ids(told.token_ids, url)
    if told.features is not None:
        hashes, places = told.features.mm_hashes, told.features.mm_placeholders
        ids.media = tuple(
            sorted(
                (
                    Media(identifier, place.offset, place.length)
                    for modality, identifiers in hashes.items()
                    for identifier, place in zip(identifiers, places.get(modality, ()), strict=False)
                ),
                key=lambda media: media.offset,
            )
        )
    return ids


def _ids(tokens: list[int], url: str) -> TokenIds:
    try:
        return TokenIds("I", tokens)
    except OverflowError as error:
        raise PodRejected(f"{url}: a token id out of range", code="pod_rejected") from error


class _Asked:
    """What is known of one pod as a tokenizer."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.under_way = 0


class PodBackend:
    """Raises `Unanswered` and nothing else."""

    def __init__(self, api: PodApi, settings: Tokens, breaker: BreakerConfig, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._asked: dict[tuple[str, bool], _Asked] = {}  # by pod, and whether it is asked to render
        self._answers: dict[bytes, asyncio.Future[TokenIds | None]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.reconfigure(settings, breaker)

    def reconfigure(self, settings: Tokens, breaker: BreakerConfig) -> None:
        """Calls from now on are bounded so."""
        self._most = settings.max_concurrent
        self._breaker = breaker
        for asked in self._asked.values():
            asked.breaker.reconfigure(failures=breaker.failures, cooldown=breaker.cooldown)

    def state(self, pod: str) -> State:
        """Whether the pod is asked for tokens."""
        asked = self._asked.get((pod, False))
        return "closed" if asked is None else asked.breaker.state(self._clock())

    def joined(self, pod: str) -> None:
        """The pod is new, or another than before."""
        for renders in (False, True):
            self._asked.pop((pod, renders), None)

    async def ids(self, question: Question, key: bytes, pods: Pods, deadline: float) -> TokenIds:
        """The answer to a question, `key` being what makes it equal to others, by `deadline` (the loop's time)."""
        while (flying := self._answers.get(key)) is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    found = await asyncio.shield(flying)
            except TimeoutError:
                raise Unanswered("timeout") from None
            if found is not None:
                return found
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        try:
            ids = await self._told(question, pods, deadline)
            answer.set_result(ids)
        except Unanswered as failure:
            answer.set_exception(failure)
            answer.exception()  # known, also where nobody else waits for it
            raise
        finally:
            del self._answers[key]
            if not answer.done():
                answer.set_result(None)  # its client left: whoever waits asks for itself
        return ids

    async def _told(self, question: Question, pods: Pods, deadline: float) -> TokenIds:
        tried: set[str] = set()
        while True:
            pod, asked = await self._place(pods, tried, deadline, renders=question.renders)
            tried.add(pod.name)
            last = len(tried) == _PODS_ASKED or len(pods()) == 1
            try:
                return await self._call(pod, asked, question, deadline, last=last)
            except PodRejected as error:
                if not error.offered and question.renders:
                    pod.renders = False
                raise Unanswered("rejected") from None  # the question is at fault: another pod would say the same
            except PodError as error:
                if last:
                    raise Unanswered("timeout" if isinstance(error, PodTimeout) else "unreachable") from None

    async def _call(self, pod: Pod, asked: _Asked, question: Question, deadline: float, *, last: bool) -> TokenIds:
        now = asyncio.get_running_loop().time()
        left = max(0.0, deadline - now)
        trial = asked.breaker.began(self._clock())
        try:
            # One that is silent must leave the next one time to answer.
            timeout = left if last else left / 2
            ids = question.read(await self._api.post(pod.url, question.path, question.body, timeout=timeout), pod.url)
        except PodRejected:
            asked.breaker.succeeded(trial=trial)
            raise
        except PodError:
            asked.breaker.failed(self._clock(), trial=trial)
            raise
        except BaseException:
            asked.breaker.ended(trial=trial)
            raise
        finally:
            asked.under_way -= 1
            self._next()
        asked.breaker.succeeded(trial=trial)
        if question.renders:
            pod.renders = True
        return ids

    async def _place(self, pods: Pods, tried: set[str], deadline: float, *, renders: bool) -> tuple[Pod, _Asked]:
        """A pod that may be asked now, one more call counted on it already.

        Rendering has books of its own: it fetches what clients name, and that may fail or take long.
        """
        while True:
            now = self._clock()
            known = [(pod, self._of(pod, renders)) for pod in pods() if pod.name not in tried]
            admitted = [(pod, asked) for pod, asked in known if asked.breaker.admits(now)]
            if not admitted:
                raise Unanswered("breaker" if known else "unreachable")
            free = [(pod, asked) for pod, asked in admitted if asked.under_way < self._most]
            if free:
                pod, asked = min(free, key=lambda each: (each[1].under_way, each[0].requests))
                asked.under_way += 1
                return pod, asked
            await self._turn(deadline)

    async def _turn(self, deadline: float) -> None:
        """Wait until a call has ended."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Unanswered("saturated")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as left:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._next()  # its turn had come, and goes to the next
            if isinstance(left, TimeoutError):
                raise Unanswered("saturated") from None
            raise

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _of(self, pod: Pod, renders: bool) -> _Asked:  # noqa: FBT001 - half of a key
        asked = self._asked.get((pod.name, renders))
        if asked is None:
            breaker = Breaker(failures=self._breaker.failures, cooldown=self._breaker.cooldown)
            asked = self._asked[pod.name, renders] = _Asked(breaker)
        return asked
