"""A gateway whose standard error nobody reads any more: it serves on, and counts the lines that are lost."""

import re
import signal

from tests.gateway.fleet import MODEL, client, simulated, until
from tests.gateway.test_command import ended, ready, started

LOST = re.compile(rb"^p2p_gateway_log_lost_lines_total [1-9]", re.MULTILINE)


async def test_a_log_that_cannot_be_written_stops_nobody_and_is_counted() -> None:
    arguments = ("--host", "127.0.0.1", "--port", "0")
    async with simulated() as (pod,), client() as http, started("--pod", pod.url, *arguments) as (process, url):
        await ready(http, url)
        transport = process._transport.get_pipe_transport(2)  # type: ignore[attr-defined] - asyncio has no other way
        transport.close()
        process.send_signal(signal.SIGHUP)  # it warns that there is nothing to reload

        async def lost() -> bool:
            async with http.get(f"{url}/metrics") as answer:
                return LOST.search(await answer.read()) is not None

        await until(lost)
        asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        async with http.post(f"{url}/v1/completions", json=asked) as answer:
            assert answer.status == 200
        process.terminate()
        assert await ended(process) == 0
