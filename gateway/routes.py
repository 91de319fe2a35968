"""URLs → handlers, and the outer border: every error leaves in its path's shape, every request in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as Next
from aiohttp.typedefs import Middleware

from config.schema import Limits
from gateway import snapshot
from gateway.answers import error_answer
from gateway.bodies import read_body
from gateway.decision import Ask, Decider
from gateway.errors import GatewayError, ModelNotFound, RequestError
from gateway.explained import explanation
from gateway.exposition import OPENMETRICS, TEXT, in_turns, openmetrics_wanted
from gateway.front.request import ClientLeftError, Request, reset
from gateway.front.unusual import ASKED, Unusual
from gateway.gate import ADMIN_PATHS, OPEN_PATHS, UNCOUNTED, Gate, may_use, require_admin
from gateway.handler import Handler
from gateway.journal import CLIENT_LEFT_STATUS, Journal
from gateway.metrics import Metrics, Record
from gateway.pods import PodTable
from gateway.shown import breaker_rows, link_rows, model_card, pod_row
from gateway.surface import ENDPOINTS, OTHER
from gateway.understand import asked_about
from gateway.web.routes import LivePage
from index import RadixIndex

_log = structlog.get_logger("gateway.routes")
_ECHOING = frozenset({hdrs.METH_TRACE, hdrs.METH_CONNECT})  # a pod's answer could hold the key it was shown
_USUAL = hdrs.METH_ALL - _ECHOING
_UP_AND_DOWN = frozenset({".", ".."})
_FOR_OPERATORS = frozenset({*ADMIN_PATHS, *OPEN_PATHS})


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
        journal: Journal,
        limits: Limits,
    ) -> None:
        self._handler = handler
        self._gate = gate
        self._pods = pods
        self._index = index
        self._decider = decider
        self._metrics = metrics
        self._limits = limits
        self._journal = journal
        self._scraping = asyncio.Lock()

    def reconfigure(self, limits: Limits) -> None:
        """Requests from now on have these."""
        self._limits = limits

    def application(self, page: LivePage | None) -> web.Application:
        """An aiohttp application with the routes for clients, and with a `page` those for operators, too."""
        app = self._application([self._gate.middleware])
        for path, own in (("/v1/models", self.models), ("/v1/models/{model:.+}", self.model)):
            app.add_routes([web.get(path, own), web.route(hdrs.METH_ANY, path, self.serve)])
        served = (endpoint.path for endpoint in (*ENDPOINTS, OTHER) if endpoint.placed != "here")
        app.add_routes(web.route(hdrs.METH_ANY, path, self.serve) for path in served)
        app.add_routes(() if page is None else self._for_operators(page))
        return app

    def admin_application(self, page: LivePage) -> web.Application:
        """One with the routes for operators only. It asks for no key: who reaches its listener is one."""
        app = self._application([])
        app.add_routes(self._for_operators(page))
        return app

    def _application(self, middlewares: list[Middleware]) -> web.Application:
        app = web.Application(middlewares=[self._border, *middlewares])
        app.on_response_prepare.append(self._parting)
        app.add_routes([web.get("/health", self.health), web.get("/ready", self.ready)])
        return app

    async def _parting(self, _: web.Request, answer: web.StreamResponse) -> None:
        """While this gateway is leaving, clients are asked to connect elsewhere."""
        if self._handler.drain.leaving:
            answer.force_close()
            answer.headers[hdrs.CONNECTION] = "close"

    def _for_operators(self, page: LivePage) -> list[web.RouteDef]:
        served = {
            "/metrics": web.get("/metrics", self.metrics),
            "/pods": web.get("/pods", self.pods),
            "/explain": web.post("/explain", self.explain),
            snapshot.PATH: web.get(snapshot.PATH, self.snapshot),
            "/ui/events": web.get("/ui/events", page.events, allow_head=False),
            "/ui/decisions/{number}": web.get("/ui/decisions/{number}", page.decision),
        }
        return [*(served[path] for path in ADMIN_PATHS), *page.routes()]

    @web.middleware
    async def _border(self, request: web.Request, handler: Next) -> web.StreamResponse:
        """What came through aiohttp."""
        asked = request[ASKED] = Unusual(request)
        return await self._journaled(asked, partial(handler, request))

    async def exchange(self, request: Request) -> web.Response | None:
        """What came without aiohttp. Returns what is to be answered; None where it has been.

        As `serve`; a plain request has the method and the very path of its endpoint.
        """
        record = self._journal.begins(request)
        try:
            counted = self._gate.admitted(request)
            if counted is UNCOUNTED:
                await self._handler.serve(request, request.endpoint)
            else:
                with counted:
                    await self._handler.serve(request, request.endpoint)
        except (asyncio.CancelledError, Exception) as error:  # whatever it is, the client gets an answer
            if (answer := self._instead(error, request, record)) is None:
                raise
            return answer
        finally:
            self._journal.ended(request, record)
        return None

    async def _journaled(
        self, request: Request, then: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """What operators and probes ask is not in the journal: it would drown what clients ask."""
        record = self._journal.begins(request)
        answer: web.StreamResponse | None
        try:
            answer = await then()
            record.status = answer.status
        except (asyncio.CancelledError, Exception) as error:
            if (answer := self._instead(error, request, record)) is None:
                raise
        finally:
            if request.resource not in _FOR_OPERATORS:
                self._journal.ended(request, record)
        return answer

    def _instead(self, error: BaseException, request: Request, record: Record) -> web.Response | None:
        """What is answered instead of what was asked for; None to a client that has left."""
        if isinstance(error, Exception):
            return self._told(request, error)
        if self._handler.drain.over and request.sent == 0:
            return self._told(request, self._handler.drain.refusal())
        record.status = CLIENT_LEFT_STATUS
        return None

    def _told(self, request: Request, error: Exception) -> web.Response:
        """What a client is told of an error. Of a fault the traceback goes to the log."""
        reason = ""
        if isinstance(error, GatewayError):
            reason = error.code
            if error.refused is not None:
                self._metrics.refused.labels(error.refused).inc()
            answer = error_answer(error, status=error.status, errors=request.errors)
        elif isinstance(error, web.HTTPMethodNotAllowed):
            answer = _not_allowed(request, error.allowed_methods)
        elif isinstance(error, web.HTTPException):
            told = RequestError(f"{request.method} {request.path}: {error.reason}", code="invalid_request")
            reason = told.code
            answer = error_answer(told, status=error.status, errors=request.errors)
        elif isinstance(error, ConnectionError | ClientLeftError):
            answer = web.Response(status=CLIENT_LEFT_STATUS)  # nobody reads it; raised, it would be logged as a fault
        else:
            _log.error("unexpected error", request_id=request.id, path=request.path, exc_info=error)
            fault = GatewayError("The gateway failed unexpectedly.", code="internal_error")
            reason = fault.code
            answer = error_answer(fault, status=fault.status, errors=request.errors)
        answer.headers["x-request-id"] = request.id
        request.record.status, request.record.reason = answer.status, reason
        return answer

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Whatever pods answer. How, the table of endpoints says."""
        asked = request[ASKED]
        endpoint = asked.endpoint
        if request.method == hdrs.METH_OPTIONS:
            endpoint = OTHER  # what a page of another origin may ask, the pod knows
        elif endpoint.methods and request.method not in endpoint.methods:
            raise web.HTTPMethodNotAllowed(request.method, endpoint.methods)
        elif request.method in _ECHOING:
            raise web.HTTPMethodNotAllowed(request.method, _USUAL)
        if not _UP_AND_DOWN.isdisjoint(request.path.split("/")):
            raise web.HTTPNotFound  # what is between here and a pod may follow it to anywhere
        if endpoint.operators:
            require_admin(asked)
        await self._handler.serve(asked, endpoint)
        assert asked.answer is not None, "a request that was served has an answer"  # noqa: S101 - for mypy
        return asked.answer

    async def models(self, request: web.Request) -> web.Response:
        """The union of what the pods serve and the key may use, each entry as its pod states it."""
        cards = self._cards(request[ASKED])
        return _json({"object": "list", "data": list(cards.values())})

    async def model(self, request: web.Request) -> web.Response:
        """One entry of /v1/models."""
        card = self._cards(request[ASKED]).get(request.match_info["model"])
        if card is None:
            raise ModelNotFound("The model does not exist.", code="model_not_found", param="model")
        return _json(card)

    async def health(self, _: web.Request) -> web.Response:
        """200 while the process runs."""
        return _json({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        """200 while a request could be served."""
        leaving = self._handler.drain.leaving
        ready = self._pods.ready and not leaving
        pods = {pod.name: pod.state if pod.state == "ready" else f"{pod.state}: {pod.reason}" for pod in self._pods}
        told = {"ready": ready, "draining": leaving, "pods": pods, "tokens": self._handler.tokenizer.summary()}
        return _json(told, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus exposition, or OpenMetrics. One page at a time, and requests have their turns meanwhile."""
        openmetrics = openmetrics_wanted(request.headers.get(hdrs.ACCEPT, ""))
        async with self._scraping:
            page = await in_turns(self._metrics.registry.page(openmetrics=openmetrics))
        return web.Response(
            body="".join(page).encode(), headers={hdrs.CONTENT_TYPE: OPENMETRICS if openmetrics else TEXT}
        )

    async def pods(self, _: web.Request) -> web.Response:
        """What is known of each pod."""
        rows = [
            pod_row(pod, self._pods, self._index) | {"tokenizer": self._handler.tokenizer.state(pod.name)}
            for pod in self._pods
        ]
        models = list(self._handler.tokenizer.shown())
        told = {"pods": rows, "links": link_rows(self._pods), "breakers": breaker_rows(self._pods), "models": models}
        return _json(told)

    async def explain(self, request: web.Request) -> web.Response:
        """The decision that a body would get now, at `?path=` or as a completion. Nothing is forwarded."""
        asked = request[ASKED]
        body = await read_body(asked, self._limits)
        endpoint = asked_about(request.query.get("path"), body)
        told = self._handler.understanding.ask(asked, endpoint, body)
        ask = told if isinstance(told, Ask) else await told
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
            reset(request.transport)  # cut off, it is not taken for whole
        return answer

    def _cards(self, request: Request) -> dict[str, msgspec.Raw]:
        served = self._pods.models().items()
        return {m: model_card([pod.models[m] for pod in pods]) for m, pods in served if may_use(request, m)}


def _not_allowed(request: Request, allowed: Iterable[str]) -> web.Response:
    """The answer to a method that a path of the gateway's own does not have; to OPTIONS, which it has."""
    if request.method == hdrs.METH_OPTIONS:
        answer = web.Response(status=204)
    else:
        told = RequestError(f"{request.method} {request.path}: Method Not Allowed", code="invalid_request")
        answer = error_answer(told, status=405, errors=request.errors)
    answer.headers[hdrs.ALLOW] = ", ".join(sorted(allowed))
    return answer


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
