"""One attempt of one request against one pod: send the body, stream the answer's bytes as they come.

Nothing is sent to the client before the pod's first body byte, so until then every failure is a `PodError` that the
caller may answer with another pod. Afterwards the answer is finished, or broken off so that the client cannot take it
for whole.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping

from msgspec import Struct

from config.schema import Limits
from gateway import engine_errors, openai
from gateway.answers import error_event
from gateway.deadline import Deadlines
from gateway.drain import Drain
from gateway.errors import EngineFailed, GatewayError, NotHere, PodError, PodRefused, PodUnavailable, PullLate
from gateway.explain_header import takes_comments
from gateway.front.request import ClientLeftError, Relay, Request
from gateway.leases import Lease
from gateway.metrics import Record
from gateway.pulls import Guard
from gateway.upstream import as_pod_error
from gateway.wire import Answer, Origin, Pool, WireError

_UNAVAILABLE = frozenset({502, 503, 504})  # these speak against a pod, whether another one is asked or not
_MULTIPLE_CHOICES = 300  # the first status that is no success
_FAILED = 400  # the first status that may be a pod's failure
_TAIL_CHUNKS = 4  # the usage of a stream is in its last chunk or two


class Attempt(Struct, frozen=True):
    """What goes to the pod.

    `length` is that of a body that comes in pieces, None where it is not known before its end. An answer with the
    status `not_here` is none for the client: `NotHere`. `first` sees the first piece of any other. `completes`: a 200
    has to have a body, in which engines' errors are looked for. `elsewhere` is asked about an answer that is a failure
    of the pod, and settles it with the books: whether another pod will be asked instead of passing it on.
    `explanation`: a comment in front of the events of an answer that has some. `guard` may give it up before its first
    byte: `PullLate`.
    """

    url: str
    headers: list[tuple[bytes, bytes]]
    body: bytes | AsyncIterable[bytes]
    length: int | None = None
    not_here: int | None = None
    first: Callable[[bytes], None] | None = None
    completes: bool = False
    elsewhere: Callable[[PodError], bool] = lambda _: False
    guard: Guard | None = None
    explanation: bytes = b""


class Proxy:
    """Sends attempts over a pool of connections; `tls` is for pods that are asked by https."""

    def __init__(self, pool: Pool, limits: Limits, drain: Drain, tls: ssl.SSLContext | None = None) -> None:
        self._pool = pool
        self._limits = limits
        self._drain = drain
        self._tls = tls
        self._origins: dict[str, Origin] = {}
        self._deadlines = Deadlines()

    @property
    def speaks_tls(self) -> bool:
        """Whether pods can be asked by https."""
        return self._tls is not None

    def speak_tls(self, tls: ssl.SSLContext) -> None:
        """From now on pods can be asked by https."""
        self._tls = tls

    def reconfigure(self, limits: Limits) -> None:
        """Attempts from now on have these."""
        self._limits = limits
        self._pool.reconfigure(connect_timeout=limits.connect_timeout)

    async def forward(
        self, request: Request, attempt: Attempt, answer_headers: Mapping[str, str], lease: Lease, record: Record
    ) -> None:
        """Stream one attempt's answer to the client. Raises PodError before the first byte; ClientLeftError."""
        begun = False
        where = attempt.url + request.target
        tail: deque[bytes] = deque((), _TAIL_CHUNKS)  # noqa: RUF037 - for speed
        try:
            # One deadline until the first byte, then for each read and the write that hands it on; who is late failed.
            with self._deadlines.within(self._limits.first_byte_timeout, attempt.guard) as deadline:
                answer = await self._send(request, attempt)
                try:
                    failed = answer.status >= _FAILED
                    error = self._refusal(answer.status, attempt, lease, where) if failed else None
                    chunk = answer.here() or await answer.read()
                    if answer.status == 200 and attempt.completes and engine_errors.suspicious(chunk):
                        chunk, error = await _judged(answer, chunk, attempt, where)
                    if error is None:
                        lease.first_byte(computed=answer.status < _MULTIPLE_CHOICES)
                    chunk = _begun(answer, chunk, attempt, record)
                    if attempt.guard is not None:
                        deadline.unguarded()
                    begun = True
                    await request.relay(Relay(answer, chunk, answer_headers, tail, deadline, self._limits.idle_timeout))
                finally:
                    answer.release()
                    if begun:
                        _reported(answer.status, b"".join(tail), record)
        except (TimeoutError, WireError) as cause:
            error = _failure(cause, where, attempt)
            if not begun:
                raise error from cause
            record.broken = error.code
            await _break_off(request, error)
        except asyncio.CancelledError:
            if not begun or not self._drain.over:
                raise
            refusal = self._drain.refusal()
            record.broken = refusal.code
            await _break_off(request, refusal)
        except ClientLeftError:
            request.reset()
            raise

    def _refusal(self, status: int, attempt: Attempt, lease: Lease, where: str) -> PodError | None:
        """What a status says against the pod. Raises it, agreed, where another pod is asked instead; NotHere."""
        if status == attempt.not_here:
            lease.first_byte(computed=False)
            raise NotHere(f"{where} answered {status}", code="not_here")
        error: PodError
        if status in _UNAVAILABLE:
            error = PodUnavailable(f"{where} answered {status}", code="pod_unavailable")
        elif status in self._limits.retry_statuses:
            error = PodRefused(f"{where} answered {status}", code=f"pod_answered_{status}")
        else:
            return None
        if attempt.elsewhere(error):
            raise error
        return error

    def _send(self, request: Request, attempt: Attempt) -> Awaitable[Answer]:
        origin = self._origins.get(attempt.url)
        if origin is None:
            tls = self._tls if attempt.url.lower().startswith("https:") else None
            origin = self._origins[attempt.url] = Origin.of(attempt.url, tls)
        target = request.target.encode("utf-8", "surrogateescape")
        return self._pool.request(
            origin, request.method.encode(), target, attempt.headers, attempt.body, length=attempt.length
        )


def _begun(answer: Answer, chunk: bytes, attempt: Attempt, record: Record) -> bytes:
    """The first byte is here. Returns what is passed on first."""
    record.first_byte = time.monotonic()
    record.status = answer.status
    if attempt.first is not None:
        attempt.first(chunk)
    if attempt.explanation and takes_comments(answer):
        return attempt.explanation + chunk
    return chunk


def _reported(status: int, end: bytes, record: Record) -> None:
    """What the end of an answer says."""
    if status == 200 and not record.engine_error:
        record.engine_error = engine_errors.at_end(end) or ""
    usage = openai.usage([end])
    record.reported_prompt, record.reported_completion = usage.prompt, usage.completion
    record.reported_cached = usage.cached


def _failure(cause: Exception, where: str, attempt: Attempt) -> PodError:
    if attempt.guard is not None and attempt.guard.fired:
        return PullLate(f"{where}: the pull is late", code="pull_late")
    return as_pod_error(cause, where)


async def _judged(answer: Answer, chunk: bytes, attempt: Attempt, where: str) -> tuple[bytes, EngineFailed | None]:
    """As much of an answer as it takes to tell whether it is an engine's failure, and this failure.

    Raises it, agreed, where another pod is asked instead.
    """
    piece = chunk
    while True:
        whole = answer.complete and not answer.buffered
        reason = engine_errors.judge(chunk, whole=whole or not piece)
        if reason is None:
            return chunk, None
        if reason != "more":
            error = EngineFailed(f"{where} answered 200 with a failure: {reason}", reason)
            if attempt.elsewhere(error):
                raise error
            return chunk, error
        piece = await answer.read()
        chunk += piece


async def _break_off(request: Request, error: GatewayError) -> None:
    """Tell an SSE client what happened; close so that no client takes the answer for complete."""
    await request.break_off(b"\n\n" + error_event(error, request.errors))


def to_pod(request: Request, request_id: str, rank: int | None, *, unpacked: bool) -> list[tuple[bytes, bytes]]:
    """The headers of a request to a pod: the client's, and ours; `rank` if the pod has several."""
    sent = [*request.passed_on(unpacked=unpacked), (b"x-request-id", request_id.encode("utf-8", "surrogateescape"))]
    if rank is not None:
        sent.append((b"x-data-parallel-rank", b"%d" % rank))
    return sent
