"""URLs → handlers, and the outer border: every error leaves in OpenAI's shape."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as Next
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from config.schema import Limits, join_address
from gateway import openai, snapshot
from gateway.answers import error_answer
from gateway.decision import Decider, explanation
from gateway.errors import GatewayError, RequestError
from gateway.gate import ADMIN_PATHS, Gate, may_use
from gateway.handler import CLIENT_LEFT_STATUS, REQUEST_ID, Handler, read_body, request_id
from gateway.metrics import TIER_NAMES, Metrics
from gateway.openai import Endpoint
from gateway.pods import Pod, PodTable
from gateway.proxy import ClientLeftError
from index import Publisher, RadixIndex

_log = structlog.get_logger("gateway.routes")


class Routes:
    """All HTTP of the gateway: what clients ask, and what operators ask, together or each on its own listener."""

    def __init__(
        self,
        *,
        handler: Handler,
        gate: Gate,
        pods: PodTable,
        index: RadixIndex,
        decider: Decider,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        self._handler = handler
        self._gate = gate
        self._pods = pods
        self._index = index
        self._decider = decider
        self._metrics = metrics
        self._limits = limits

    def application(self, *, admin: bool) -> web.Application:
        """An aiohttp application with the routes for clients, and those for operators too if `admin`."""
        app = self._application(self._gate.middlewares())
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat_completions),
                web.post("/v1/completions", self.completions),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{model:.+}", self.model),
                *(self._for_operators() if admin else ()),
            ]
        )
        return app

    def admin_application(self) -> web.Application:
        """One with the routes for operators only. It asks for no key: who reaches its listener is one."""
        app = self._application([])
        app.add_routes(self._for_operators())
        return app

    def _application(self, middlewares: list[Middleware]) -> web.Application:
        app = web.Application(middlewares=[self._errors, *middlewares], client_max_size=self._limits.max_body)
        app.add_routes([web.get("/health", self.health), web.get("/ready", self.ready)])
        return app

    def _for_operators(self) -> list[web.RouteDef]:
        served = {
            "/metrics": web.get("/metrics", self.metrics),
            "/pods": web.get("/pods", self.pods),
            "/explain": web.post("/explain", self.explain),
            snapshot.PATH: web.get(snapshot.PATH, self.snapshot),
        }
        return [served[path] for path in ADMIN_PATHS]

    @web.middleware
    async def _errors(self, request: web.Request, handler: Next) -> web.StreamResponse:
        request[REQUEST_ID] = request_id(request)
        try:
            return await handler(request)
        except GatewayError as error:
            if error.refused is not None:
                self._metrics.refused.labels(error.refused).inc()
            answer = error_answer(error, status=error.status)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            answer = error_answer(
                RequestError(f"{request.method} {request.path}: {error.reason}", code="invalid_request"),
                status=error.status,
            )
            answer.headers.update({n: v for n, v in error.headers.items() if n == hdrs.ALLOW})
        except (ConnectionError, ClientLeftError):
            return web.Response(status=CLIENT_LEFT_STATUS)  # nobody reads it; raised, it would be logged as a fault
        except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the traceback
            _log.exception("unexpected error", request_id=request[REQUEST_ID], path=request.path)
            answer = error_answer(GatewayError("The gateway failed unexpectedly.", code="internal_error"), status=500)
        answer.headers["x-request-id"] = request[REQUEST_ID]
        return answer

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Chat, JSON or SSE."""
        return await self._handler.serve(request, "chat/completions")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Text completion of a text, token ids, or a batch of either."""
        return await self._handler.serve(request, "completions")

    async def models(self, request: web.Request) -> web.Response:
        """The union of what the pods serve and the key may use, each entry as its pod states it."""
        cards = self._cards(request)
        return _json({"object": "list", "data": list(cards.values())})

    async def model(self, request: web.Request) -> web.Response:
        """One entry of /v1/models."""
        card = self._cards(request).get(request.match_info["model"])
        if card is None:
            error = RequestError("The model does not exist.", code="model_not_found", param="model")
            return error_answer(error, status=404)
        return _json(card)

    async def health(self, _: web.Request) -> web.Response:
        """200 while the process runs."""
        return _json({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        """200 while a request could be served."""
        ready = self._pods.ready and not self._handler.draining
        pods = {pod.name: pod.state if pod.state == "ready" else f"{pod.state}: {pod.reason}" for pod in self._pods}
        return _json({"ready": ready, "draining": self._handler.draining, "pods": pods}, status=200 if ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus exposition."""
        return web.Response(
            body=generate_latest(self._metrics.registry), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST}
        )

    async def pods(self, _: web.Request) -> web.Response:
        """What is known of each pod."""
        return _json({"pods": [self._pod(pod) for pod in self._pods]})

    async def explain(self, request: web.Request) -> web.Response:
        """The decision that a completion body would get now. Nothing is forwarded."""
        body = await read_body(request, self._limits)
        peek = openai.peek(body)
        endpoint: Endpoint = "completions" if peek.messages is msgspec.UNSET else "chat/completions"
        ask = await self._handler.understand(request, endpoint, body)
        return _json(explanation(self._decider.decide(ask)))

    async def snapshot(self, request: web.Request) -> web.StreamResponse:
        """The index, for a gateway that starts with --restore."""
        answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/octet-stream"})
        await answer.prepare(request)
        try:
            for chunk in snapshot.chunks(self._index, self._pods):
                async with asyncio.timeout(self._limits.idle_timeout):
                    await answer.write(chunk)
                await asyncio.sleep(0)
            await answer.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # cut off, it is not taken for whole
        return answer

    def _cards(self, request: web.Request) -> dict[str, msgspec.Raw]:
        models = self._pods.models().items()
        return {m: msgspec.Raw(pods[0].models[m].card) for m, pods in models if may_use(request, m)}

    def _pod(self, pod: Pod) -> dict[str, Any]:
        now = time.monotonic()
        held = [self._index.blocks(Publisher(pod.name, rank)) for rank in pod.ranks]
        blocks = {name: sum(tiers[tier] for tiers in held) for tier, name in TIER_NAMES.items()}
        ranks = []
        for rank in pod.ranks:
            load, counts, stream = pod.load.get(rank), pod.in_flight.get(rank), pod.streams.get(rank)
            ranks.append(
                {
                    "rank": rank,
                    "waiting": load and load.waiting,
                    "running": load and load.running,
                    "kv_usage": load and load.kv_usage,
                    "in_flight_requests": counts.requests if counts else 0,
                    "in_flight_tokens": counts.tokens if counts else 0,
                    "last_event_age": None
                    if not stream or stream.last_event_at is None
                    else round(now - stream.last_event_at, 3),
                    "last_seq": stream and stream.last_seq,
                    "gaps": stream.gaps if stream else 0,
                    "restarts": stream.restarts if stream else 0,
                    "certain": bool(stream and stream.certain),
                    "accuracy": stream and stream.trust.accuracy,
                    "credit": round(stream.trust.credit(now), 4) if stream else 1.0,
                }
            )
        return {
            "url": pod.url,
            "role": pod.spec.role,
            "state": pod.state,
            "reason": pod.reason or None,
            "suspect": pod.suspect,
            "models": list(pod.models),
            "labels": pod.spec.labels,
            "p2p": pod.p2p and join_address(*pod.p2p),
            "breaker": pod.breaker.state(self._pods.clock()),
            "cannot_pull_from": self._pods.agreement.of(pod.name),
            "cached_blocks": blocks,
            **_over_ranks(ranks),
            "ranks": ranks,
        }


def _over_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod's own line: sums of loads, the worst of streams; null where no rank said anything."""

    def known(field: str) -> list[Any]:
        return [rank[field] for rank in ranks if rank[field] is not None]

    line: dict[str, Any] = {f: sum(known(f)) if known(f) else None for f in ("waiting", "running")}
    line |= {f: sum(known(f)) for f in ("in_flight_requests", "in_flight_tokens", "gaps", "restarts")}
    line |= {f: max(known(f), default=None) for f in ("kv_usage", "last_seq")}
    line["last_event_age"] = min(known("last_event_age"), default=None)
    line |= {f: min(known(f), default=None) for f in ("accuracy", "credit")}
    line["certain"] = bool(ranks) and all(rank["certain"] for rank in ranks)
    return line


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
