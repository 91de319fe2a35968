"""A headless Chromium for a test, and what went wrong in its pages."""

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).parents[2] / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
# As root there is no sandbox, and what Chromium asks its makers for must not be waited for.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def ties_go_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pods that score alike, the first configured is chosen."""
    monkeypatch.setattr(random, "random", lambda: 0.0)


class Browser:
    """Pages by the size of their window, and what their consoles complained of."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium
        self.complaints: list[str] = []
        self.asked: list[str] = []

    async def page(self, *, width: int = 1400, height: int = 1000, theme: str = "light", **options: Any) -> Any:
        """An empty one, in a profile of its own."""
        size: Any = {"width": width, "height": height}
        context = await self._chromium.new_context(viewport=size, color_scheme=theme, **options)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))
        return page

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Fails the test for any complaint that it does not take out."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    async with api.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        found = Browser(chromium)
        try:
            yield found
        finally:
            await chromium.close()
    assert found.complaints == []
