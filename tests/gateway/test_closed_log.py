"""A gateway whose standard error nobody reads any more: it serves on, and counts the lines that are lost."""

import asyncio
import os
import re
import signal
import sys

from tests.gateway.fleet import DEADLINE_S, MODEL, client, simulated, until
from tests.gateway.test_command import ready

LOST = re.compile(rb"^p2p_gateway_log_lost_lines_total [1-9]", re.MULTILINE)


def url_told(descriptor: int) -> str:
    """The URL that the start-up line names; nobody reads what comes after it."""
    with os.fdopen(descriptor, "rb", buffering=0) as log:
        said = b""
        while (match := re.search(rb"serving .*url=(\S+).*\n", said)) is None:
            said += (piece := log.read(4096))
            assert piece, "it has ended"
    return match[1].decode()


async def test_a_log_that_cannot_be_written_stops_nobody_and_is_counted() -> None:
    async with simulated() as (pod,), client() as http:
        command = [sys.executable, "-m", "gateway", "--pod", pod.url, "--host", "127.0.0.1", "--port", "0"]
        read_end, write_end = os.pipe()
        process = await asyncio.create_subprocess_exec(*command, stderr=write_end)
        os.close(write_end)
        try:
            url = await asyncio.wait_for(asyncio.to_thread(url_told, read_end), DEADLINE_S)
            await ready(http, url)
            process.send_signal(signal.SIGHUP)  # it warns that there is nothing to reload

            async def lost() -> bool:
                async with http.get(f"{url}/metrics") as answer:
                    return LOST.search(await answer.read()) is not None

            await until(lost)
            asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
            async with http.post(f"{url}/v1/completions", json=asked) as answer:
                assert answer.status == 200
            process.terminate()
            assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
