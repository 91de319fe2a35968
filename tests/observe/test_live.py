"""A real Prometheus before gateways to which everything happens that there is an alert for.

Windows of minutes and hours are seconds here; what the alerts do over their true windows, `test_rules` shows.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observe.files import DASHBOARDS, PROMETHEUS, alerts, recordings, targets
from tests.observe.scenes import SCENES, TRACE, Scene
from tests.observe.stack import PROMETHEUS_BINARY, Scraper, installed, prometheus

pytestmark = [
    pytest.mark.observe,
    pytest.mark.skipif(installed(PROMETHEUS_BINARY) is None, reason="no prometheus: apt-get install prometheus"),
]

SHORT = {"5m": "4s", "15m": "4s", "30m": "5s", "1h": "6s", "6h": "8s"}
"""Windows, for those of the files."""
FOR = "1s"
INTERVAL = "500ms"
PAUSE_S = 0.2
QUIET_S = 10.0  # longer than every window and `for` together
OF_THE_MACHINE = {
    "P2PGatewayDown",
    "P2PGatewayEventLoopLate",
    "P2PGatewayFirstTokensLate",
    "P2PGatewayPredictionsOff",
}
"""Alerts that somebody else's load may raise on a machine that is shared, when all is well."""
STEP_S = 30.0
FIRES_S = 90.0
ENDS_S = 60.0


def shortened(expr: str) -> str:
    """Windows in seconds; and what goes by how quick the machine is with bounds that only the faults here reach."""
    found = re.sub(r"(\[|offset )(\w+)\b", lambda found: found[1] + SHORT[found[2]], expr)
    if "event_loop_lag" in expr:
        return found.replace("> 0.1", "> 1")
    return found.replace("< 0.5", "< 0.09").replace("> 2", "> 50") if "ttft_error_ratio" in expr else found


def shorten(folder: Path) -> None:
    """The rules as they are shipped, in a hurry."""
    for file in ("recording.yml", "alerts.yml"):
        told = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))
        for rule in (rule for group in told["groups"] for rule in group["rules"]):
            rule["expr"] = shortened(rule["expr"])
            if "for" in rule:
                rule["for"] = FOR
        (folder / file).write_text(yaml.safe_dump(told), encoding="utf-8")


def queries() -> dict[str, str]:
    """Every query of a panel and every recorded name, as Grafana would ask them."""
    asked = {rule.name: rule.name for rule in recordings()}
    for path in DASHBOARDS:
        for title, target in targets(path):
            expr = target["expr"].replace("$__rate_interval", SHORT["5m"]).replace('="$pod"', '=~".+"')
            asked[f"{path.stem}: {title}: {target['refId']}"] = expr.replace("$pod", ".*").replace("$model", ".*")
    return asked


class Found:
    """What has come so far: alerts, and queries that had data."""

    def __init__(self, scraper: Scraper, scenes: Sequence[Scene] = ()) -> None:
        self.scraper = scraper
        self.targets: dict[str, set[str]] = {}
        for scene in scenes:  # where each alert has to come from, if it says where it comes from
            for name in scene.alerts:
                self.targets.setdefault(name, set()).update(scene.targets)
        self.fired: set[str] = set()
        self.summaries: dict[str, str] = {}
        self.without_data = queries()

    async def look(self) -> None:
        for alert in await self.scraper.alerts():
            name, instance = alert["labels"]["alertname"], alert["labels"].get("instance")
            of_its_scene = instance is None or not self.targets or instance in self.targets[name]
            if alert["state"] == "firing" and of_its_scene:
                self.fired.add(name)
                self.summaries[name] = alert["annotations"]["summary"]
        for name, expr in list(self.without_data.items()):
            if await self.scraper.query(expr):
                del self.without_data[name]


@asynccontextmanager
async def going_on(scenes: list[Scene], step: Callable[[Scene], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Every scene does this again and again as long as the context lasts; what fails in one is raised."""

    async def again(scene: Scene) -> None:
        while not over.is_set():
            try:
                async with asyncio.timeout(STEP_S):
                    await step(scene)
            except TimeoutError as error:
                raise AssertionError(f"{type(scene).__name__} does not get on") from error
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), PAUSE_S)

    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for scene in scenes:
            group.create_task(again(scene))
        try:
            yield
        finally:
            over.set()


@pytest.mark.timeout(280)
async def test_every_alert_comes_with_its_fault_and_goes_and_every_query_has_data(tmp_path: Path) -> None:
    shorten(tmp_path)
    async with AsyncExitStack() as stack:
        scenes = []
        for number, make in enumerate(SCENES):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            scenes.append(make(stack, folder))
            await scenes[-1].begin()
        assert {name for scene in scenes for name in scene.alerts} == {alert.name for alert in alerts()}
        targets = [target for scene in scenes for target in scene.targets]
        scraper = await stack.enter_async_context(prometheus(tmp_path, targets, interval=INTERVAL, rules=tmp_path))
        began, found = time.time(), Found(scraper, scenes)

        async with going_on(scenes, lambda scene: scene.well()):
            await asyncio.sleep(QUIET_S)
            quiet = Found(scraper)
            for _ in range(8):
                await quiet.look()
                await asyncio.sleep(PAUSE_S)
        assert quiet.fired <= OF_THE_MACHINE, quiet.summaries
        assert await scraper.unwell() == []

        async with going_on(scenes, lambda scene: scene.strike()):
            await until_done(found, lambda: not found.without_data and found.fired == expected(), FIRES_S)
        assert sorted(expected() - found.fired) == [], "did not fire"
        assert found.without_data == {}, "had no data"
        assert [told for told in found.summaries.values() if "<error" in told or "<no value>" in told] == []
        exemplars = await scraper.exemplars("p2p_gateway_ttft_seconds_bucket", began, time.time())
        assert {each["labels"]["trace_id"] for series in exemplars for each in series["exemplars"]} == {TRACE}

        await asyncio.gather(*(scene.mend() for scene in scenes))
        async with going_on(scenes, lambda scene: scene.well()):
            left = await until_quiet(scraper)
        assert left == set(), "did not end"


def expected() -> set[str]:
    return {alert.name for alert in alerts()}


async def until_done(found: Found, done: Callable[[], bool], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not done():
                await found.look()
                await asyncio.sleep(PAUSE_S)


async def until_quiet(scraper: Scraper) -> set[str]:
    """What still fires at the end of its time."""
    firing = await scraper.firing()
    with suppress(TimeoutError):
        async with asyncio.timeout(ENDS_S):
            while firing:
                await asyncio.sleep(PAUSE_S)
                firing = await scraper.firing()
    return firing
