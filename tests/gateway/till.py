"""A pod that answers one request after the other, when a test says so; and requests that wait before it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.gateway.fleet import Answer, Front, text_body, until
from tests.gateway.scripted import ScriptedPod, scripted


class Till:
    """`came` are the ids of the requests that have arrived at the pod, in order."""

    def __init__(self, pod: ScriptedPod) -> None:
        self.pod = pod
        self.came: list[str] = []
        self._open: dict[str, asyncio.Future[None]] = {}
        pod.scripts["/v1/completions"] = pod.scripts["/v1/messages"] = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.headers["x-request-id"]
        self.came.append(name)
        self._open[name] = asyncio.get_running_loop().create_future()
        try:
            await self._open[name]
        finally:
            self._open.pop(name, None)
        return web.json_response({})

    @property
    def under_way(self) -> int:
        """How many are at the pod."""
        return len(self._open)

    def serve(self) -> None:
        """Answer the one that came first."""
        self._open.pop(next(iter(self._open))).set_result(None)

    async def until_came(self, count: int) -> None:
        """Return when so many have come."""
        await until(lambda: len(self.came) >= count)

    async def serve_all(self, count: int) -> None:
        """One after the other, until so many have come in all, and none is left."""
        while len(self.came) < count:
            self.serve()
            await self.until_came(len(self.came) + 1)
        while self._open:
            self.serve()


@asynccontextmanager
async def till(**scripts: Any) -> AsyncIterator[Till]:
    async with scripted(**scripts) as pod:
        yield Till(pod)


def asked(
    front: Front, name: str, headers: Mapping[str, str] | None = None, *, path: str = "/v1/completions", **fields: Any
) -> asyncio.Task[Answer]:
    """A request under way, by its id."""
    sent = {"x-request-id": name, **(headers or {})}
    return asyncio.create_task(front.post(path, text_body(**{"prompt": [1], **fields}), sent))


async def placed(front: Front, at: Till, name: str, **fields: Any) -> asyncio.Task[Answer]:
    """A request that has arrived at the pod."""
    task = asked(front, name, **fields)
    await until(lambda: name in at.came)
    return task


async def held(
    front: Front, name: str, headers: Mapping[str, str] | None = None, **fields: Any
) -> asyncio.Task[Answer]:
    """A request that waits; one that takes the place of another is to be sent by `asked`."""
    waiting = front.parts.admission.waiting()
    task = asked(front, name, headers, **fields)
    await until(lambda: front.parts.admission.waiting() == waiting + 1)
    return task
