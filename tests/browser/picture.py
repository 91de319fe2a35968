"""`python -m tests.browser.picture`: docs/ui.png, the live page of a running demo."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from playwright.async_api import async_playwright

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.packaging.test_demo import free_port

PICTURE = Path(__file__).parents[2] / "docs" / "ui.png"
WATCHED_S = 100  # until a minute of curves is there
TELLING = """() => document.querySelector(".arrow.fresh")
    && document.querySelector("#decisions tr:nth-child(-n+3) .named")"""  # a pull is seen where all of it can be
WIDTH, HEIGHT = 1400, 1260


async def main() -> None:
    """Take it."""
    port = free_port()
    command = (sys.executable, "-m", "loadgen", "demo", "--port", str(port))
    demo = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        assert demo.stdout is not None
        while not (await demo.stdout.readline()).startswith(b"Serving until"):
            assert demo.returncode is None, "the demo has ended"
        async with async_playwright() as driver:
            chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = await chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark")
            await page.goto(f"http://127.0.0.1:{port}/ui")
            await page.locator("#link[data-state=live]").wait_for()
            await asyncio.sleep(WATCHED_S)
            await page.wait_for_function(TELLING, timeout=0)
            await page.screenshot(path=PICTURE)
            await chromium.close()
    finally:
        if demo.returncode is None:
            demo.terminate()
        await demo.wait()


if __name__ == "__main__":
    asyncio.run(main())
