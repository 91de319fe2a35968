"""`make observe`: the demo under load, a Prometheus that scrapes it, and Grafana where it is installed.

Ends everything with Ctrl-C, or after `--seconds`. Exit code 1: something did not start, or ended by itself.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

from tests.observe.stack import (
    GRAFANA_BINARIES,
    PROMETHEUS_BINARY,
    NotReady,
    answers,
    free_port,
    grafana,
    installed,
    process,
    prometheus,
)

_LOAD: Final = {
    "prefixes": 8,
    "prefix_tokens": 2000,
    "question_tokens": 200,
    "output_tokens": 32,
}


def main() -> int:
    """Parse, run until somebody has seen enough."""
    parser = argparse.ArgumentParser(prog="make observe", description=__doc__)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (default 4)")
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
    given = parser.parse_args()
    if installed(PROMETHEUS_BINARY) is None:
        sys.stderr.write("There is no prometheus here. On Debian: apt-get install prometheus\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="p2p-gateway-observe-") as directory:
        try:
            asyncio.run(_observe(Path(directory), given.rate, given.seconds))
        except NotReady as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


async def _observe(directory: Path, rate: float, seconds: float | None) -> None:
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, me.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with contextlib.AsyncExitStack() as stack:
            port = free_port()
            url = f"http://127.0.0.1:{port}"
            log = directory / "demo.log"
            demo = await stack.enter_async_context(process(_of_loadgen("demo", "--port", str(port)), log))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            await answers(http, f"{url}/ready", demo, log)
            load = await stack.enter_async_context(process(_load(url, rate), directory / "load.log"))
            scraper = await stack.enter_async_context(prometheus(directory, [f"127.0.0.1:{port}"]))
            say(f"gateway     {url}/metrics")
            say(f"prometheus  {scraper.url}/alerts")
            if (binary := installed(*GRAFANA_BINARIES)) is None:
                say("grafana     is not installed; its dashboards are in config/grafana")
            else:
                say(
                    f"grafana     {await stack.enter_async_context(grafana(directory, binary, scraper.url))}/dashboards"
                )
            say("Ctrl-C ends them all.")
            await _until_over({log: demo, directory / "load.log": load}, seconds)


async def _until_over(processes: Mapping[Path, asyncio.subprocess.Process], seconds: float | None) -> None:
    ends = {asyncio.ensure_future(each.wait()): log for log, each in processes.items()}
    try:
        done, _ = await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
    for end in done:
        raise NotReady(f"What should go on has ended:\n{ends[end].read_text(errors='replace')[-2000:]}")


def _load(url: str, rate: float) -> list[str]:
    """Prompts that share prefixes, for as long as anybody may want to look."""
    sets = [word for name, value in _LOAD.items() for word in ("--set", f"{name}={value}")]
    return _of_loadgen(
        "run", url, "--dataset", "shared-prefix", *sets, "--rate", str(rate), "--duration", "1e7", "--quiet"
    )


def _of_loadgen(*words: str) -> list[str]:
    return [sys.executable, "-m", "loadgen", *words]


def say(line: str) -> None:
    """To whoever started it, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
