"""One request, top to bottom."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping

import structlog
from aiohttp import web

from config.schema import Limits
from gateway import openai
from gateway.credentials import Credentials
from gateway.decision import Ask, Decider, Decision
from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    Draining,
    GatewayError,
    ModelNotFound,
    NoPodReady,
    PodError,
    PodTimeout,
    RequestError,
)
from gateway.gate import key_id, require_model
from gateway.inject import remote_kv_source, with_kv_transfer_params
from gateway.metrics import Metrics, Record
from gateway.openai import Endpoint, Peek
from gateway.pods import PodTable
from gateway.proxy import Attempt, ClientLeftError, Proxy, to_pod
from gateway.tokens import Tokenizer
from index import Counted

_log = structlog.get_logger("gateway.requests")
CLIENT_LEFT_STATUS = 499  # nginx's, known to every dashboard
_MAX_REQUEST_ID_LENGTH = 128
REQUEST_ID = web.RequestKey("request_id", str)


class Handler:
    """Serves chat and text completions."""

    def __init__(
        self,
        *,
        pods: PodTable,
        tokenizer: Tokenizer,
        decider: Decider,
        proxy: Proxy,
        credentials: Credentials,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        self._pods = pods
        self._tokenizer = tokenizer
        self._decider = decider
        self._proxy = proxy
        self._credentials = credentials
        self._metrics = metrics
        self._limits = limits
        self.draining = False

    async def serve(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        """Answer one request. Raises GatewayError when nothing has been sent yet."""
        record = Record(started=time.monotonic(), key=key_id(request))
        try:
            if self.draining:
                raise Draining("This gateway is shutting down.", code="draining")
            body = await read_body(request, self._limits)
            ask = await self.understand(request, endpoint, body)
            record.model = ask.model
            self._metrics.tokenized.labels(ask.prompt.tokens_from, ask.prompt.reason).inc()
            return await self._attempts(request, ask, body, record)
        except GatewayError as error:
            record.status = error.status
            raise
        except (asyncio.CancelledError, ClientLeftError):
            record.status = CLIENT_LEFT_STATUS
            raise
        finally:
            self._completed(request, record)

    async def understand(self, request: web.Request, endpoint: Endpoint, body: bytes) -> Ask:
        """Peek at a body and get its prompt's token ids. Raises RequestError, ModelNotFound."""
        peek = openai.peek(body)
        require_model(request, peek.model)
        model = self._model(peek)
        require_model(request, model)
        pods = self._pods.serving(model)
        prompt = await self._tokenizer.tokenize(endpoint, peek, model, pods)
        return Ask(request[REQUEST_ID], endpoint, peek, model, prompt)

    async def _attempts(self, request: web.Request, ask: Ask, body: bytes, record: Record) -> web.StreamResponse:
        """Decide, forward; before the first byte, a pod's failure is answered by another pod with a fresh decision."""
        tried: dict[str, PodError] = {}
        while True:
            try:
                decision = self._decide(ask, tried, record)
            except NoPodReady:
                if tried:
                    raise next(reversed(tried.values())) from None
                raise
            try:
                return await self._attempt(request, decision, ask, body, record)
            except PodError as error:
                tried[decision.pod.name] = error
                if not error.retryable or len(tried) >= self._limits.attempts:
                    raise
                self._metrics.retries.labels(error.code).inc()
                _log.warning("attempt failed", request_id=ask.request_id, pod=decision.pod.name, error=error.message)

    async def _attempt(
        self, request: web.Request, decision: Decision, ask: Ask, body: bytes, record: Record
    ) -> web.StreamResponse:
        pod, chosen, source = decision.pod, decision.chosen, decision.source
        stream = pod.streams[chosen.rank]  # of this incarnation, should the pod come back as another meanwhile
        params = None
        if source is not None and source.p2p_host is not None and source.p2p_port is not None:
            params = remote_kv_source(source.p2p_host, source.p2p_port, str(uuid.uuid4()))
        rank = chosen.rank if len(pod.ranks) > 1 else None
        headers = to_pod(request.headers, ask.request_id, rank)
        self._credentials.apply(headers, pod.url)
        attempt = Attempt(pod.url, request.path_qs, headers, _with_source(body, params))
        expected = None
        if source is None and record.predicted_cached is not None and record.prompt_tokens is not None:
            expected = Counted(record.prompt_tokens, record.predicted_cached)
        with self._pods.leased(pod, chosen.rank, decision.uncached_tokens, expected) as lease:
            try:
                answer = await self._proxy.forward(request, attempt, _headers(decision, ask), lease, record)
            except PodError as error:
                lease.failed(self._pods.clock(), suspect=not isinstance(error, PodTimeout))
                raise
            if record.broken:
                lease.failed(self._pods.clock(), suspect=True)
            elif record.reported_cached is not None:
                stream.audit.told()
                if expected is not None:
                    stream.trust.compared(expected.cached, record.reported_cached, self._pods.clock())
            return answer

    def _decide(self, ask: Ask, tried: Mapping[str, PodError], record: Record) -> Decision:
        began = time.perf_counter()
        decision = self._decider.decide(ask, tried)
        self._metrics.decision.observe(time.perf_counter() - began)
        self._metrics.pulls.labels(decision.source_reason).inc()
        record.attempts += 1
        record.pod = decision.pod.name
        record.source = decision.source_pod.name if decision.source_pod is not None else ""
        record.source_reason = decision.source_reason
        record.tokens_from = ask.prompt.tokens_from
        record.prompt_tokens = ask.prompt.tokens
        # Of a batch, engines report the cached tokens of one sequence only.
        record.predicted_cached = None if ask.is_batch else decision.predicted_cached
        if record.source:
            self._metrics.pulled_tokens.labels(record.source).inc(decision.source_tokens - decision.chosen.any_tokens)
        return decision

    def _model(self, peek: Peek) -> str:
        models = self._pods.models()
        if not models:
            raise NoPodReady("No pod has been reached yet.", code="no_pod_ready")
        if peek.model is None and len(models) == 1:
            return next(iter(models))
        if peek.model is None:
            raise RequestError("model: required, the fleet serves several.", code="missing_model", param="model")
        if peek.model not in models:
            raise ModelNotFound(
                f"The model `{peek.model[:200]}` does not exist.", code="model_not_found", param="model"
            )
        return peek.model

    def _completed(self, request: web.Request, record: Record) -> None:
        now = time.monotonic()
        self._metrics.completed(record, now)
        _log.info(
            "request",
            request_id=request[REQUEST_ID],
            path=request.path,
            key=record.key or None,
            model=record.model,
            pod=record.pod,
            source=record.source or None,
            source_reason=record.source_reason,
            status=record.status,
            attempts=record.attempts,
            prompt_tokens=record.prompt_tokens,
            tokens_from=record.tokens_from,
            predicted_cached=record.predicted_cached,
            reported_cached=record.reported_cached,
            ttft_s=None if record.first_byte is None else round(record.first_byte - record.started, 4),
            duration_s=round(now - record.started, 4),
        )


async def read_body(request: web.Request, limits: Limits) -> bytes:
    """The whole body: at most `max_body` bytes, within `idle_timeout`. Raises RequestError and its kinds."""
    too_large = BodyTooLarge(f"The body is larger than {limits.max_body} bytes.", code="body_too_large")
    if request.content_length is not None and request.content_length > limits.max_body:
        raise too_large
    try:
        # Broken chunks end in here too: aiohttp reports them only with the next request on the connection.
        async with asyncio.timeout(limits.idle_timeout):
            return await request.read()
    except TimeoutError as error:
        raise BodyTimeout("The body did not arrive in time.", code="body_timeout") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large from error
    except web.RequestPayloadError as error:
        raise RequestError(f"The body could not be read: {error}", code="invalid_body") from error


def _with_source(body: bytes, params: bytes | None) -> bytes:
    try:
        return with_kv_transfer_params(body, params)
    except ValueError as error:
        raise RequestError(f"The body cannot be forwarded: {error}", code="invalid_body") from error


def request_id(request: web.Request) -> str:
    """The client's `x-request-id` where it is usable, else a fresh one."""
    given = request.headers.get("x-request-id", "")
    return given if 0 < len(given) <= _MAX_REQUEST_ID_LENGTH and given.isprintable() else uuid.uuid4().hex


def _headers(decision: Decision, ask: Ask) -> dict[str, str]:
    headers = {"x-gateway-pod": decision.pod.url, "x-request-id": ask.request_id}
    if decision.source is not None:
        headers["x-gateway-kv-source"] = decision.source.pod
    return headers
