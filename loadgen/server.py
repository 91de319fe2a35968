"""The pod's HTTP face: vLLM's routes, bodies and errors over its ranks' engines."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Run
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadgen import faults, protocol, responses, tokens
from loadgen.completions import Completions
from loadgen.engine import Engine
from loadgen.events import Lora
from loadgen.metrics import PodCollector, render
from loadgen.options import Outcome, PodOptions, Received
from loadgen.others import Others
from loadgen.protocol import ApiError
from loadgen.stored import Stored

VERSION: Final = "0.32.0"
_LONGEST_BODY: Final = 256 << 20
_CLIENT_LEFT: Final = 499  # what proxies log for it
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LoggedHandler = Callable[[web.Request, Received], Awaitable[web.StreamResponse]]


class PodServer:
    """Serves one pod's ``engines``, one per rank; logs arrivals in ``received``, tells ``event_sources`` as it is.

    ``inject`` takes the faults that are asked for, where ``options`` allow that; ValueError: there is no such fault.
    """

    def __init__(
        self,
        options: PodOptions,
        engines: Run[Engine],
        received: deque[Received],
        event_sources: dict[str, dict[str, Any]],
        inject: Callable[[faults.AnyFault], None],
    ) -> None:
        self._options = options
        self._inject = inject
        self._received = received
        self._event_sources = event_sources
        self._started = time.time()
        loras = {name: (Lora(i, name), path) for i, (name, path) in enumerate(options.loras.items(), start=1)}
        self._loras = loras
        self._names = [options.model, *loras]
        self._metrics = PodCollector(engines, options.model, loras, self._started)
        self.completions = Completions(options, engines, loras)
        self._stored = Stored(self._names, self.completions)
        self._others = Others(self._names, self.completions)

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[_refusals_worded], client_max_size=_LONGEST_BODY)
        app.router.add_post("/v1/chat/completions", self._logged(self.completions.chat))
        app.router.add_post("/v1/completions", self._logged(self.completions.text))
        app.router.add_post("/tokenize", self._logged(self._tokenize))
        app.router.add_post("/detokenize", self._logged(self._detokenize))
        for path, answer in self._more_routes().items():
            app.router.add_post(path, self._logged(answer))
        app.router.add_get("/v1/responses/{id}", self._logged(self._stored.retrieve), allow_head=False)
        app.router.add_post("/v1/chat/completions/render", self._logged(self._scale_out))
        app.router.add_post("/v1/completions/render", self._logged(self._scale_out))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._show_metrics)
        if self._options.event_sources:
            app.router.add_get("/kv_event_sources", self._show_event_sources)
        if self._options.faults:
            app.router.add_post("/fault", self._fault)
        return app

    def _more_routes(self) -> dict[str, _LoggedHandler]:
        stored, others = self._stored, self._others
        return {
            "/v1/responses": stored.create,
            "/v1/responses/{id}/cancel": stored.cancel,
            "/v1/messages": others.messages,
            "/v1/messages/count_tokens": others.messages,
            "/v1/embeddings": others.embeddings,
            **dict.fromkeys(("/v1/score", "/score"), others.score),
            **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), others.rerank),
            "/classify": others.classify,
            "/pooling": others.pooling,
            "/v1/audio/transcriptions": others.transcription,
        }

    def _logged(self, answer: _LoggedHandler) -> _Handler:
        """Log what arrives and how it ends."""

        async def handler(request: web.Request) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            received = Received(request.path, headers, await request.read())
            self._received.append(received)
            outcome: Outcome = "aborted"
            try:
                response = await answer(request, received)
            except ApiError as error:
                outcome, received.status = "failed", error.status
                raise
            else:
                outcome, received.status = "finished", response.status
                return response
            finally:
                received.outcome = outcome

        return handler

    async def _tokenize(self, request: web.Request, received: Received) -> web.Response:
        raw = received.body
        fields = protocol.parse(raw, request.content_type, dict[str, Any])
        if "messages" in fields:
            chat = protocol.parse(raw, request.content_type, protocol.TokenizeChat)
            protocol.check_model(chat.model, self._names)
            ids, spelled = protocol.render(chat), chat.return_token_strs
        else:
            text = protocol.parse(raw, request.content_type, protocol.TokenizeText)
            protocol.check_model(text.model, self._names)
            ids = tokens.render_prompt(text.prompt, add_special_tokens=text.add_special_tokens)
            spelled = text.return_token_strs
        return responses.json(
            {
                "count": len(ids),
                "max_model_len": self._options.profile.max_model_len,
                "tokens": ids,
                "token_strs": [tokens.spell(token) for token in ids] if spelled else None,
            }
        )

    async def _detokenize(self, request: web.Request, received: Received) -> web.Response:
        body = protocol.parse(received.body, request.content_type, protocol.Detokenize)
        protocol.check_model(body.model, self._names)
        return responses.json({"prompt": tokens.decode(protocol.check_ids(body.tokens, "tokens"))})

    async def _scale_out(self, _request: web.Request, _received: Received) -> web.Response:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
            kind="PermissionDeniedError",
        )

    async def _models(self, _request: web.Request) -> web.Response:
        created = int(self._started)
        base = {"object": "model", "created": created, "owned_by": "vllm"}
        longest = self._options.profile.max_model_len
        cards = [
            base | {"id": self._options.model, "root": self._options.root, "parent": None, "max_model_len": longest}
        ]
        for name, (_, path) in self._loras.items():
            cards.append(base | {"id": name, "root": path, "parent": self._options.model, "max_model_len": None})
        return responses.json({"object": "list", "data": cards})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return responses.json({"version": VERSION})

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=render(self._metrics), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _show_event_sources(self, _request: web.Request) -> web.Response:
        return responses.json(self._event_sources)

    async def _fault(self, request: web.Request) -> web.Response:
        """Inject what the body describes and answer with it, its defaults filled in."""
        try:
            fault = faults.decode(await request.read())
            answer = responses.json(msgspec.to_builtins(fault))
            if isinstance(fault, faults.Kill):
                # The answer goes first: its connection is reset as well.
                await answer.prepare(request)
                await answer.write_eof()
            self._inject(fault)
        except ValueError as error:
            raise protocol.invalid(str(error)) from error
        return answer


@web.middleware
async def _refusals_worded(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Word every refusal as vLLM does, the router's own included."""
    try:
        return await handler(request)
    except ApiError as error:
        return responses.json(error.body, error.status)
    except ConnectionResetError:
        return web.Response(status=_CLIENT_LEFT)  # nobody reads it; raised, it would be logged as a fault of the pod
    except web.HTTPException as error:
        status = HTTPStatus(error.status)
        return responses.json(ApiError(status, status.phrase).body, status)
