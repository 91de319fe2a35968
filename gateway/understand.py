"""From a request to what has to be decided: its model, its prompt's token ids, the pods that come into question."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from aiohttp import hdrs
from msgspec import UNSET

from gateway import bodies, openai
from gateway.bodies import Body, Upload
from gateway.decision import Ask
from gateway.errors import ModelNotFound, NoPodReady, RequestError
from gateway.front.request import Request
from gateway.gate import may_use, require_model
from gateway.openai import Named, Peek
from gateway.pods import PodTable
from gateway.sessions import Sessions, session_of
from gateway.surface import CHAT, COMPLETIONS, ENDPOINTS, Endpoint
from gateway.tokens import Prompt, Tokenizer, unknown

_NOTHING_PEEKED = Peek()
_COMPUTES_NOTHING = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_DELETE})


class Understanding:
    """Looks at requests. What it raises are RequestErrors, and NoPodReady while no pod has been reached."""

    def __init__(self, pods: PodTable, tokenizer: Tokenizer, sessions: Sessions) -> None:
        self._pods = pods
        self._tokenizer = tokenizer
        self._sessions = sessions

    def ask(self, request: Request, endpoint: Endpoint, body: Body) -> Ask | Awaitable[Ask]:
        """What a request comes to, its prompt tokenized where it is known how: at once, or to be awaited."""
        stored = endpoint.placed == "response"
        if endpoint.prompt is None or isinstance(body, Upload) or (stored and _goes_on(body)):
            return self._by_load(request, endpoint, body)
        peek = openai.peek(body)
        model = self._model(request, peek.model)
        if model is None:
            raise _model_missing()
        pods = partial(self._pods.serving, model)
        prompt = self._tokenizer.tokenize(endpoint.prompt, peek, body, model, pods)
        if isinstance(prompt, Prompt):
            return self._asked(request, endpoint, peek, model, prompt)
        return self._awaited(request, endpoint, peek, model, prompt)

    async def _awaited(
        self, request: Request, endpoint: Endpoint, peek: Peek, model: str, prompt: Awaitable[Prompt]
    ) -> Ask:
        return self._asked(request, endpoint, peek, model, await prompt)

    def _asked(self, request: Request, endpoint: Endpoint, peek: Peek, model: str, prompt: Prompt) -> Ask:
        return Ask(
            request.id,
            peek,
            model,
            prompt,
            pulls=endpoint.pulls,
            session=self._session(request, peek) if self._sessions.wanted else None,
            streams=endpoint.timely and peek.stream is True,
            is_batch=len(prompt.sequences) > 1 or peek.sequences > 1,
        )

    async def _by_load(self, request: Request, endpoint: Endpoint, body: Body) -> Ask:
        stored = request.response_id if endpoint.placed == "response" else None
        named = Named() if stored is not None else await _named(request, body)
        needed = stored or (named.previous_response_id if endpoint.placed == "response" else None)
        model = self._model(request, named.model)
        if endpoint.reads == "json" and model is None:
            raise _model_missing()
        # What does not say of which model it is must not reach one that the key may not use. A form may name another
        # model after the first, and a response is found where it is.
        anywhere = model is not None and needed is None and not isinstance(body, Upload)
        return Ask(
            request.id,
            _NOTHING_PEEKED,
            model,
            unknown(endpoint.why),
            only=None if anywhere else self._usable(request),
            response_id=needed,
            computes=endpoint.computes and request.method not in _COMPUTES_NOTHING,
            session=self._session(request, _NOTHING_PEEKED),
        )

    def _session(self, request: Request, peek: Peek) -> str | None:
        return session_of(request.headers, peek) if self._sessions.wanted else None

    def _model(self, request: Request, named: str | None) -> str | None:
        """The model named, or the only one there is; None where it could be any."""
        if request.key is not None:
            require_model(request, named)
        if named is not None and self._pods.knows(named):
            return named
        models = self._pods.models()
        if not models:
            raise NoPodReady("No pod has been reached yet.", code="no_pod_ready")
        if named is None and len(models) > 1:
            return None
        if named is not None:
            raise ModelNotFound(f"The model `{named[:200]}` does not exist.", code="model_not_found", param="model")
        model = next(iter(models))
        require_model(request, model)
        return model

    def _usable(self, request: Request) -> frozenset[str] | None:
        """The pods of which the request's key may use every model; None: all."""
        usable = {pod.name: all(may_use(request, model) for model in pod.models) for pod in self._pods}
        return None if all(usable.values()) else frozenset(name for name, may in usable.items() if may)


async def _named(request: Request, body: Body) -> Named:
    if isinstance(body, bytes):
        return openai.named(body) if body else Named()
    if request.content_type != "multipart/form-data" or hdrs.CONTENT_ENCODING in request.headers:
        return Named()
    return Named(model=bodies.form_model(request.headers[hdrs.CONTENT_TYPE], await body.head()))


def asked_about(path: str | None, body: bytes) -> Endpoint:
    """The endpoint that a body is meant for when nobody sends it there. Raises RequestError."""
    if path is None:
        return COMPLETIONS if openai.peek(body).messages is UNSET else CHAT
    for endpoint in ENDPOINTS:
        if endpoint.path == path and endpoint.prompt is not None:
            return endpoint
    raise RequestError("path: no path whose prompt is looked at.", code="invalid_value", param="path")


def _goes_on(body: bytes) -> bool:
    """Whether a response's prompt begins with what only a pod keeps."""
    return openai.named(body).previous_response_id is not None


def _model_missing() -> RequestError:
    return RequestError("model: required, the fleet serves several.", code="missing_model", param="model")
