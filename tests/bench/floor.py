"""The least that a proxy of aiohttp costs: its server, its client, and no decision: `python -m … PORT BACKEND …`.

The backends take turns; nothing of a request is looked at. Ends when its standard input does.
"""

import asyncio
import sys
from itertools import cycle

import aiohttp
import uvloop
from aiohttp import hdrs, web


async def serve(port: int, backends: list[str]) -> None:
    """Until standard input ends."""
    turn = cycle(backends)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:

        async def proxied(request: web.Request) -> web.StreamResponse:
            body, kind = await request.read(), {hdrs.CONTENT_TYPE: request.content_type}
            async with session.request(request.method, next(turn) + request.path, data=body, headers=kind) as answer:
                headers = {hdrs.CONTENT_TYPE: answer.content_type}
                if answer.content_length is not None:
                    return web.Response(status=answer.status, body=await answer.read(), headers=headers)
                response = web.StreamResponse(status=answer.status, headers=headers)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response

        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", proxied)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
