"""A gateway whose configuration file a test writes anew, and SIGHUP without a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from config.load import load
from gateway.reload import ConfigFile, Reloader
from gateway.server import running
from tests.gateway.fleet import Front, client, configuration, text_body


class Reloadable:
    """A gateway, its file, and SIGHUP without a process."""

    def __init__(self, front: Front, file: Path, reloader: Reloader, sections: dict[str, Any]) -> None:
        self.front = front
        self.file = file
        self._reloader = reloader
        self._sections = sections

    async def reload(self, pods: Any, **sections: Any) -> str:
        """Write the file anew, with the sections that it had unless told otherwise, and read it."""
        self._sections = self._sections | sections
        self.file.write_text(written(pods, self._sections))
        return await self.again()

    async def again(self) -> str:
        return await self._reloader.reload()


def written(pods: Any, sections: dict[str, Any]) -> str:
    data = msgspec.to_builtins(configuration(pods, **sections))
    return yaml.safe_dump(data)


@asynccontextmanager
async def reloadable(pods: Any, file: Path, *, session: Any = None, **sections: Any) -> AsyncIterator[Reloadable]:
    file.write_text(written(pods, sections))
    async with running(load(file)) as server, client(**session or {}) as http:
        front = Front(server, http)
        await front.until_ready(len(pods))
        yield Reloadable(front, file, server.reloader(ConfigFile(file, lambda: load(file))), sections)


async def streamed(front: Front, begun: asyncio.Event, **fields: Any) -> bytes:
    """A stream's whole body; `begun` is set with its first piece."""
    whole = b""
    async with front.http.post(f"{front.url}/v1/completions", json=text_body([1], stream=True, **fields)) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_any():
            whole += piece
            begun.set()
    return whole


async def begin(front: Front, **fields: Any) -> asyncio.Task[bytes]:
    """A stream under way."""
    begun = asyncio.Event()
    stream = asyncio.create_task(streamed(front, begun, **fields))
    await begun.wait()
    return stream
