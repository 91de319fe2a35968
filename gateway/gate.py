"""Who may do what, and how many at once, before a body is read.

Nothing is open unless it is listed: a path that is added later asks for a key. Paths are those of the route that was
matched, so no spelling of a URL gets around them. Without keys and limits everything passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler as Next

from config.keys import ApiKey
from gateway.errors import Forbidden, Overloaded, RateLimited
from gateway.front.request import Request
from gateway.front.unusual import ASKED
from gateway.keys import Keys

ADMIN_PATHS = ("/metrics", "/pods", "/explain", "/index/snapshot", "/ui/events", "/ui/decisions/{number}")
PAGE_PATHS = ("/ui", "/ui/", "/ui/{file}", "/ui/vendor/{file}")  # it asks for the key itself; without one it is empty
OPEN_PATHS = frozenset({"/health", "/ready", *PAGE_PATHS})
_UNCOUNTED_PATHS = frozenset({"/v1/models", "/v1/models/{model}", *ADMIN_PATHS})
UNCOUNTED = nullcontext()


class Gate:
    """`keys` None: nobody needs one; `most` None: as many requests as come."""

    def __init__(self, keys: Keys | None, *, most: int | None, open_metrics: bool = False) -> None:
        self._under_way = 0
        self._of_key: Counter[str] = Counter()  # by id, so that a changed file of keys changes nothing here
        self.reconfigure(keys, most=most, open_metrics=open_metrics)

    def reconfigure(self, keys: Keys | None, *, most: int | None, open_metrics: bool) -> None:
        """Requests from now on. Those under way go on, and count where they were counted."""
        self._keys = keys
        self._most = most
        self._open = OPEN_PATHS | {"/metrics"} if open_metrics else OPEN_PATHS

    @web.middleware
    async def middleware(self, request: web.Request, handler: Next) -> web.StreamResponse:
        """What a listener for clients puts before its routes."""
        with self.admitted(request[ASKED]):
            return await handler(request)

    def admitted(self, request: Request) -> AbstractContextManager[None]:
        """What a request is served within. Raises Unauthorized, Forbidden, RateLimited, Overloaded."""
        if (self._keys is None and self._most is None) or request.resource in self._open:
            return UNCOUNTED
        if self._keys is not None and not _is_preflight(request):
            request.key = self._keys.of(request.headers)
            if request.resource in ADMIN_PATHS:
                require_admin(request)
        if request.resource in _UNCOUNTED_PATHS and request.method != hdrs.METH_OPTIONS:
            return UNCOUNTED
        return self._counted(request.key)

    @contextmanager
    def _counted(self, key: ApiKey | None) -> Iterator[None]:
        name = "" if key is None else key.id
        if key is not None and key.max_concurrent is not None and self._of_key[name] >= key.max_concurrent:
            raise RateLimited(
                f"This API key has {key.max_concurrent} requests under way, as many as it may.",
                code="rate_limit_exceeded",
                refused="key_limit",
            )
        if self._most is not None and self._under_way >= self._most:
            raise Overloaded("As many requests are under way as may be.", code="overloaded", refused="global_limit")
        self._under_way += 1
        self._of_key[name] += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._of_key[name] -= 1


def _is_preflight(request: Request) -> bool:
    """Whether a browser asks what a page may ask: by its nature without a key, answered by pods without one."""
    names = (hdrs.ORIGIN, hdrs.ACCESS_CONTROL_REQUEST_METHOD)
    return request.method == hdrs.METH_OPTIONS and not request.body_exists and all(n in request.headers for n in names)


def may_use(request: Request, model: str) -> bool:
    """Whether the request's key allows a model; true where no key is asked for."""
    key = request.key
    return key is None or key.allows(model)


def require_admin(request: Request) -> None:
    """Raise Forbidden where the request's key is none with `admin`."""
    key = request.key
    if key is not None and not key.admin:
        raise Forbidden("This needs a key with `admin`.", code="admin_key_required", refused="not_admin")


def require_model(request: Request, model: str | None) -> None:
    """Raise Forbidden for a model that the request's key does not allow. None: not named, and nothing to check."""
    if model is not None and not may_use(request, model):
        raise Forbidden(
            f"This API key may not use the model `{model[:200]}`.",
            code="model_not_allowed",
            param="model",
            refused="model",
        )
