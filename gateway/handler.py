"""One request, top to bottom."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial

import structlog
from msgspec.structs import replace

from config.schema import Limits
from gateway import bodies
from gateway.admission import Admission
from gateway.bodies import Body, Upload
from gateway.credentials import Credentials
from gateway.decision import Ask, Decision
from gateway.errors import EngineFailed, Forbidden, NoPodReady, NotHere, PodError, PodTimeout, PullLate, RequestError
from gateway.front.request import Request
from gateway.inject import (
    kv_transfer_params,
    may_hold_params,
    remote_kv_source,
    with_cache_salt,
    with_kv_transfer_params,
)
from gateway.leases import Lease
from gateway.metrics import Metrics, Record
from gateway.openai import BYTE_ORDER_MARK
from gateway.placements import Placements
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.proxy import Attempt, Proxy, to_pod
from gateway.retries import RetryBudget
from gateway.sticky import Keeper, Responses, not_found
from gateway.surface import OTHER, Endpoint
from gateway.tokens import Tokenizer
from gateway.understand import Understanding
from index import Counted

_log = structlog.get_logger("gateway.requests")
_NOT_FOUND = 404
_MULTIPLE_CHOICES = 300  # the first status that is no success


class Handler:
    """Serves what pods answer."""

    def __init__(
        self,
        *,
        pods: PodTable,
        tokenizer: Tokenizer,
        placements: Placements,
        proxy: Proxy,
        credentials: Credentials,
        metrics: Metrics,
        limits: Limits,
        admission: Admission,
    ) -> None:
        self._pods = pods
        self.tokenizer = tokenizer
        self._decider = placements.decider
        self._proxy = proxy
        self._credentials = credentials
        self._metrics = metrics
        self._limits = limits
        self._budget = RetryBudget(limits.retry_budget)
        placements.pulls.budget.reconfigure(limits.retry_budget)
        self._responses = Responses(pods)
        self._placements = placements
        self.understanding = Understanding(pods, tokenizer, placements.decider.columns.sessions)
        self.drain = admission.drain
        self._admission = admission

    def reconfigure(self, limits: Limits) -> None:
        """Requests from now on have these."""
        self._limits = limits
        self._budget.reconfigure(limits.retry_budget)
        self._placements.pulls.budget.reconfigure(limits.retry_budget)

    async def serve(self, request: Request, endpoint: Endpoint) -> None:
        """Answer one request. Raises GatewayError when nothing has been sent yet."""
        self.drain.require_open()
        record = request.record
        body: Body | None = bodies.arrived(request, endpoint.reads, self._limits)
        if body is None:
            body = await bodies.receive(request, endpoint.reads, self._limits)
        asked = self.understanding.ask(request, endpoint, body)
        ask = asked if isinstance(asked, Ask) else await asked
        record.model = ask.model or ""
        self._metrics.tokenized.labels(ask.prompt.tokens_from, ask.prompt.reason).value += 1.0
        learn = self._learner(request, ask) if endpoint.placed == "response" else None
        if self._admission.on and ask.computes:
            await self._admission.admit(request, self._responses.narrowed(request, ask))
        if ask.response_id is not None:
            return await self._where_it_is(request, ask, body, record, learn)
        self._budget.began()
        try:
            return await self._where_best(request, ask, body, record, learn)
        finally:
            self._budget.ended(self._pods.clock())

    async def _where_best(self, request: Request, ask: Ask, body: Body, record: Record, learn: _Learn | None) -> None:
        """Decide, forward; before the first byte, a pod's failure is answered by another pod with a fresh decision."""
        if ask.only is not None and not ask.only:
            raise Forbidden(
                "This API key may not use all models of any pod.", code="model_not_allowed", refused="model"
            )
        tried: dict[str, PodError] = {}
        stuck: dict[str, PodError] = {}  # the source of a pull that was late: asked where there is nobody else
        while True:
            try:
                decision = self._decide(ask, {**stuck, **tried} if stuck else tried, record)
            except NoPodReady:
                if stuck:
                    stuck.clear()
                    continue
                if tried:
                    raise next(reversed(tried.values())) from None
                raise
            asked = decision.pod.name
            again = partial(self._again, ask, body, tried, asked)
            try:
                return await self._attempt(request, decision, ask, body, record, again=again, learn=learn)
            except PullLate as late:
                record.late_source = record.source
                ask = replace(ask, late=True)  # it may well be the same pod again
                if record.source != asked:  # else another rank of it
                    stuck[record.source] = late
                told = {"pod": asked, "source": record.source, "error": late.message}
                _log.warning("pull given up", request_id=ask.request_id, **told)
            except PodError as error:
                tried[asked] = error
                if not (error.agreed or (error.retryable and again())):
                    raise
                self._metrics.retries.labels(error.code).inc()
                _log.warning("attempt failed", request_id=ask.request_id, pod=decision.pod.name, error=error.message)

    def _again(self, ask: Ask, body: Body, tried: Mapping[str, PodError], last: str) -> bool:
        """Whether a pod other than those `tried` and the `last` may be asked. A yes is paid for out of the budget."""
        asked = frozenset((*tried, last))
        if len(asked) >= self._limits.attempts:
            refused = "attempts"
        elif not _repeatable(body):
            refused = "body"
        elif not self._pods.serving(ask.model, asked, ask.only):
            refused = "no_pod"
        elif not self._budget.take(self._pods.clock()):
            refused = "budget"
        else:
            return True
        self._metrics.retries_refused.labels(refused).inc()
        return False

    async def _where_it_is(self, request: Request, ask: Ask, body: Body, record: Record, learn: _Learn | None) -> None:
        """Forward to the pod that keeps a response; where that is not known, to one after the other until one does."""
        places = self._responses.places(request, ask, ask.response_id or "")
        failed: PodError | NoPodReady | None = None
        for place in places:
            asked = replace(ask, only=frozenset({place}))
            # The last to be asked speaks for all, unless one of them could not be.
            not_here = None if place == places[-1] and failed is None else _NOT_FOUND
            again = partial(_repeatable, body) if place != places[-1] else _never
            try:
                decision = self._decide(asked, {}, record)
                return await self._attempt(
                    request, decision, asked, body, record, again=again, not_here=not_here, learn=learn
                )
            except NotHere:
                pass
            except (PodError, NoPodReady) as error:
                failed = error
            if not _repeatable(body):
                break
        raise failed or not_found(ask.response_id or "")

    async def _attempt(
        self,
        request: Request,
        decision: Decision,
        ask: Ask,
        body: Body,
        record: Record,
        *,
        again: _Again,
        not_here: int | None = None,
        learn: _Learn | None = None,
    ) -> None:
        pod, chosen = decision.pod, decision.chosen
        stream = pod.streams[chosen.rank]  # of this incarnation, should the pod come back as another meanwhile
        first = None if learn is None else _first(learn, pod, record)
        expected = _expected(decision, ask, record)
        timely = ask.timely
        record.placed, record.predicted_ttft = time.monotonic(), decision.predicted_s if timely else None
        headers, explains = _headers(decision, ask), self._placements.explains
        explanation = explains.told(request, decision, headers) if explains.allowed else b""
        with decision.leased(self._pods, expected, streams=timely) as lease:
            sent_headers, sent, length = self._to_send(request, decision, ask, body, record)
            attempt = Attempt(  # by position, as candidates are
                pod.url,
                sent_headers,
                sent,
                length,
                not_here,
                first,
                ask.computes and record.endpoint != OTHER.label,
                partial(self._elsewhere, lease, record, again),
                None if decision.source is None else self._placements.pulls.guard(decision, ask, lease),
                explanation,
            )
            try:
                await self._proxy.forward(request, attempt, headers, lease, record)
            except PodError as error:
                if error.agreed or isinstance(error, NotHere):
                    raise
                if isinstance(body, Upload) and (fault := body.blamed(error)) is not None:
                    raise fault from error
                lease.failed(self._pods.clock(), suspect=not isinstance(error, PodTimeout))
                raise
            finally:
                if not ask.computes:  # what it tells was told before, with the answer that computed it
                    record.reported_prompt = record.reported_completion = record.reported_cached = None
                    record.engine_error = ""
                self._placements.ended(decision, record)
            if not (record.broken or record.engine_error):
                lease.completed()
            if record.broken and not (isinstance(body, Upload) and body.fault is not None):
                lease.failed(self._pods.clock(), suspect=True)
                return
            if record.reported_prompt is not None and not (ask.is_batch or record.rendered_once):
                self.tokenizer.reported(ask.prompt, ask.model or "", record.reported_prompt)
            if record.reported_cached is not None:
                stream.audit.told()
                if expected is not None:
                    stream.trust.compared(expected.cached, record.reported_cached, self._pods.clock())

    def _elsewhere(self, lease: Lease, record: Record, again: _Again, error: PodError) -> bool:
        """What to do with an answer that is a failure: whether to ask another pod instead of passing it on."""
        if error.blames:
            lease.failed(self._pods.clock(), suspect=True)
        else:
            lease.first_byte(computed=False)
        error.agreed = again()
        if isinstance(error, EngineFailed):
            if error.agreed:
                self._metrics.engine_errors.labels(record.pod, error.reason).inc()
            else:
                record.engine_error = error.reason
        return error.agreed

    def _to_send(
        self, request: Request, decision: Decision, ask: Ask, body: Body, record: Record
    ) -> tuple[list[tuple[bytes, bytes]], Body, int | None]:
        """Headers, body, its length."""
        pod, source, pulled = decision.pod, decision.source, None
        if source is not None and source.p2p_host is not None and source.p2p_port is not None:
            pulled = remote_kv_source(source.p2p_host, source.p2p_port, str(uuid.uuid4()))
        rank = decision.chosen.rank if len(pod.ranks) > 1 else None
        is_upload = isinstance(body, Upload)
        # An engine may still be about to let go of the request that was taken back from it.
        sent_id = f"{ask.request_id}-again" if ask.late else ask.request_id
        headers = self._credentials.apply(to_pod(request, sent_id, rank, unpacked=not is_upload), pod.url)
        length = None
        if isinstance(body, Upload):
            length = body.length
        elif body:
            ids = self.tokenizer.ids_to_send(pod, ask.request_id, ask.peek, ask.prompt)
            if ids is not None:
                self._metrics.rendered_once.labels(pod.name).inc()
            record.rendered_once = ids is not None
            ours = pulled is not None or ids is not None or decision.salt is not None
            if ours or may_hold_params(body):  # else nothing is put in, and nothing has to be taken out
                body = _with_params(body, kv_transfer_params(pulled, ids), decision.salt)
        return headers, body, length

    def _decide(self, ask: Ask, tried: Mapping[str, PodError], record: Record) -> Decision:
        began = time.perf_counter()
        decision = self._decider.decide(ask, tried)
        if self._placements.pulls.hanging:
            decision = self._placements.around_what_hangs(decision, ask, tried)
        self._metrics.decision.observe(time.perf_counter() - began)
        self._placements.made(ask, decision, record.attempts + 1)
        self._metrics.pulls.labels(decision.source_reason).value += 1.0
        record.attempts += 1
        record.pod = decision.pod.name
        record.source = decision.source_pod.name if decision.source_pod is not None else ""
        record.source_reason = decision.source_reason
        record.tokens_from, record.tokens_reason = ask.prompt.tokens_from, ask.prompt.reason
        whole = ask.prompt.whole
        record.prompt_tokens = decision.request.prompt_tokens if whole else None
        # Of a batch, engines report the cached tokens of one sequence only.
        record.predicted_cached = decision.predicted_cached if whole and not ask.is_batch else None
        record.streamed = ask.streams and not ask.is_batch
        if record.source:
            self._metrics.pulled_tokens.labels(record.source).inc(decision.pulled_tokens)
            self._metrics.joined_pulls.labels(record.source).inc(0 if decision.pulled_tokens else 1)
        if (watcher := self._placements.watcher) is not None:
            watcher.placed(ask, decision, record)
        return decision

    def _learner(self, request: Request, ask: Ask) -> _Learn:
        """What sees the first piece of an answer, to know from then on where a response is."""
        stored = request.response_id

        def learn(pod: Pod, status: int, piece: bytes) -> None:
            if status >= _MULTIPLE_CHOICES:
                return
            if stored is None:
                self._responses.made(piece, Keeper(pod.name, ask.model))
            else:
                self._responses.found(stored, pod.name)

        return learn


_Learn = Callable[[Pod, int, bytes], None]
_Again = Callable[[], bool]  # whether another pod is asked


def _first(learn: _Learn, pod: Pod, record: Record) -> Callable[[bytes], None]:
    return lambda piece: learn(pod, record.status, piece)


def _expected(decision: Decision, ask: Ask, record: Record) -> Counted | None:
    """What the pod's counters should make of a request; None where that cannot be predicted."""
    if decision.source is None and record.predicted_cached is not None and record.prompt_tokens is not None:
        return Counted(record.prompt_tokens, record.predicted_cached)
    return None if ask.computes else Counted(0, 0)


def _never() -> bool:
    return False


def _repeatable(body: Body) -> bool:
    return isinstance(body, bytes) or body.repeatable


def _with_params(body: bytes, params: bytes | None, salt: str | None = None) -> bytes:
    mark = BYTE_ORDER_MARK if body.startswith(BYTE_ORDER_MARK) else b""
    try:
        if not mark and salt is None:
            return with_kv_transfer_params(body, params)
        if salt is not None:
            body = mark + with_cache_salt(body[len(mark) :], salt)
        return mark + with_kv_transfer_params(body[len(mark) :], params)
    except ValueError as error:
        raise RequestError(f"The body cannot be forwarded: {error}", code="invalid_body") from error


def _headers(decision: Decision, ask: Ask) -> dict[str, str]:
    headers = {"x-gateway-pod": decision.pod.url, "x-request-id": ask.request_id}
    if decision.source is not None:
        headers["x-gateway-kv-source"] = decision.source.pod
    return headers
