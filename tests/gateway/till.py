"""Pods that answer one request after the other, when a test says so; and requests that wait before them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.gateway.fleet import Answer, Front, client, serving, text_body, until
from tests.gateway.keyring import bearer, write
from tests.gateway.scripted import ScriptedPod, scripted

ONE: dict[str, Any] = {"enabled": True, "max_in_flight": 1}
# What makes a pod full with one request.
FULL: dict[str, dict[str, Any]] = {
    "a bound": {"admission": ONE},
    "its limit": {"admission": {**ONE, "max_in_flight": 100}, "limits": {"max_concurrent_per_pod": 1}},
}
_PATHS = ("/v1/completions", "/v1/messages", "/v1/responses")


class Till:
    """`came` are the ids of the requests that have arrived at the pod, in order; `found`, how many each found there.

    Its answer has a request's id for its own.
    """

    def __init__(self, pod: ScriptedPod) -> None:
        self.pod = pod
        self.came: list[str] = []
        self.found: dict[str, int] = {}
        self._open: dict[str, asyncio.Future[int]] = {}
        pod.scripts |= dict.fromkeys(_PATHS, self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.headers["x-request-id"]
        self.came.append(name)
        self.found[name] = len(self._open)
        self._open[name] = asyncio.get_running_loop().create_future()
        try:
            return web.json_response({"id": name}, status=await self._open[name])
        finally:
            self._open.pop(name, None)

    @property
    def under_way(self) -> int:
        """How many are at the pod."""
        return len(self._open)

    @property
    def most(self) -> int:
        """How many have been there at once."""
        return 1 + max(self.found.values())

    def serve(self, status: int = 200) -> None:
        """Answer the one that came first."""
        first = self._open.pop(next(iter(self._open)))
        if not first.done():  # else its client has just left
            first.set_result(status)

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


@asynccontextmanager
async def one_at_a_time(
    sections: Mapping[str, Any] | None = None, **admission: Any
) -> AsyncIterator[tuple[Front, Till]]:
    """A gateway that sends a pod one request at a time, or whatever else `admission` says."""
    async with till() as pod, serving([pod.pod], admission={**ONE, **admission}, **(sections or {})) as front:
        yield front, pod


def write_keys(folder: Path) -> Path:
    """A file of keys that differ in what they are due."""
    entries = [
        {"id": "small", "key": "sk-small"},
        {"id": "large", "key": "sk-large", "share": 3},
        {"id": "boss", "key": "sk-boss", "priority": 10},
        {"id": "root", "key": "sk-root", "admin": True},
    ]
    write(folder / "keys.yaml", entries)
    return folder / "keys.yaml"


@asynccontextmanager
async def with_keys(file: Path, **admission: Any) -> AsyncIterator[tuple[Front, Till]]:
    """The same for clients that show keys. One for `sk-root` asks what has to be asked before."""
    sections = {"auth": {"keys": str(file)}, "session": {"headers": bearer("sk-root")}}
    async with one_at_a_time(sections, **admission) as (front, pod), client() as http:
        front.http = http
        yield front, pod


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


def urgent(priority: int) -> dict[str, str]:
    """Headers that ask for it."""
    return {"x-gateway-priority": str(priority)}


def assert_rejected(answer: Answer, reason: str) -> int:
    """Seconds after which to come back."""
    assert answer.status == 429
    assert answer.headers["x-gateway-rejected"] == reason
    assert answer.headers["x-request-id"]
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert answer.json["error"]["code"] == reason
    return int(answer.headers["retry-after"])


async def rejections(front: Front) -> dict[str, float]:
    """How many were turned away, by reason."""
    reasons = ("queue_full", "timeout", "displaced")
    found = {reason: await front.metric("admission_rejected_total", reason=reason) for reason in reasons}
    return {reason: count for reason, count in found.items() if count}
