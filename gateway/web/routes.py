"""The live page over HTTP: the page itself, which is open, and what it shows, which is for operators."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import hdrs, web

from gateway.errors import DecisionNotFound
from gateway.front.request import reset
from gateway.gate import PAGE_PATHS
from gateway.metrics import Metrics
from gateway.web.live import LiveView, TooSlow

_DIGITS: Final = 18  # no decision has a number as long
_PAGE: Final = "index.html"
_STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing but this gateway's own files, no script or style within the page, and nobody frames it: what a model or a
# request is called can be anything.
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class File(msgspec.Struct, frozen=True):
    """A file of the page, in memory."""

    kind: str
    body: bytes
    tag: str


def read_files() -> Mapping[str, File]:
    """All of them, by their path below `static`. Reads the disk."""
    return {
        str(path.relative_to(_STATIC)): File(_KINDS[path.suffix], body, sha256(body).hexdigest()[:20])
        for path in sorted(_STATIC.rglob("*"))
        if path.suffix in _KINDS
        for body in (path.read_bytes(),)
    }


class LivePage:
    """Its handlers."""

    def __init__(self, live: LiveView, files: Mapping[str, File], metrics: Metrics) -> None:
        self._live = live
        self._files = files
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """Of the page itself, which shows nothing yet."""
        handlers = {"/ui": self.page, "/ui/": self.to_page, "/ui/{file}": self.file, "/ui/vendor/{file}": self.file}
        return [web.get(path, handlers[path]) for path in PAGE_PATHS]

    async def page(self, request: web.Request) -> web.Response:
        """The page."""
        return _file(request, self._files[_PAGE])

    async def to_page(self, _: web.Request) -> web.Response:
        """What it refers to is found from `/ui`."""
        return web.Response(status=308, headers={hdrs.LOCATION: "../ui"})

    async def file(self, request: web.Request) -> web.Response:
        """What the page is made of."""
        name = request.path.removeprefix("/ui/")
        if name == _PAGE or name not in self._files:  # what the page refers to is found from `/ui` only
            raise web.HTTPNotFound
        return _file(request, self._files[name])

    async def events(self, request: web.Request) -> web.StreamResponse:
        """What happens, as server-sent events, until the viewer leaves, is too slow, or the gateway goes."""
        answer = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-store", "x-accel-buffering": "no"}
        )

        async def write(event: bytes) -> None:
            if not answer.prepared:
                await answer.prepare(request)
            await answer.write(event)

        try:
            await self._live.follow(write)
            await answer.write_eof()
        except TooSlow:
            self._metrics.viewers_dropped.inc()
            reset(request.transport)
        return answer

    async def decision(self, request: web.Request) -> web.Response:
        """One of the latest decisions: its request, and its explanation from when it was made."""
        number = request.match_info["number"]
        found = self._live.observer.table(int(number)) if number.isdecimal() and len(number) < _DIGITS else None
        if found is None:
            raise DecisionNotFound("This decision is not kept any more.", code="decision_not_found")
        row, table = found
        body = msgspec.json.encode({"request": row, "decision": msgspec.Raw(table)})
        return web.Response(body=body, content_type="application/json", headers={hdrs.CACHE_CONTROL: "no-store"})


def _file(request: web.Request, file: File) -> web.Response:
    tag = f'"{file.tag}"'
    headers = {**_HEADERS, hdrs.ETAG: tag}
    if tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers={**headers, hdrs.CONTENT_TYPE: file.kind})
