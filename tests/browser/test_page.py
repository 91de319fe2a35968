"""The live page in a browser, in front of simulated pods: what it shows, and what can be done with it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.schema import Config
from gateway.server import running
from tests.browser.conftest import AXE, Browser
from tests.gateway.fleet import MODEL, QUEUE_ONLY, Front, client, configuration, fleet, ids, simulated, until, warm
from tests.gateway.keyring import ALICE, ENTRIES, ROOT, bearer, write

pytestmark = pytest.mark.timeout(90)

DRAWN = """canvas => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] > 200) colours.add(pixels.slice(at, at + 3).join());
  return [...colours];
}"""
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
BACK = "() => getComputedStyle(document.body).backgroundColor"


@asynccontextmanager
async def shown(browser: Browser, front: Front, **options: Any) -> AsyncIterator[Any]:
    """The page, once it is live."""
    page = await browser.page(**options)
    await page.goto(f"{front.operators_url}/ui")
    await live(page)
    yield page
    await page.context.close()
    await until(lambda: not front.parts.live_view.viewers)


async def live(page: Any, pods: str = "") -> None:
    await page.locator(f"#link[data-state=live]:has-text('{pods}')").wait_for()


async def pulled(front: Front, pods: Any, count: int = 640) -> Any:
    """Have the first pod pull from the second what that has cached."""
    prompt = ids(count)
    await warm(pods[1], prompt)
    await front.settled(pods[1])
    answer = await front.complete(prompt, max_tokens=3)
    assert answer.source == pods[1].url
    return answer


def port(url: str) -> str:
    return ":" + url.rpartition(":")[2]


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_pods_curves_pulls_and_decisions_appear(browser: Browser) -> None:
    async with fleet(2, placement=QUEUE_ONLY) as (front, pods), shown(browser, front) as page:
        await live(page, "2 of 2 pods ready")
        rows = page.locator("#pods tbody tr")
        assert await rows.count() == 2
        first = await rows.first.inner_text()
        assert pods[0].url.removeprefix("http://") in first
        assert "ready" in first
        assert MODEL in first
        empty = [await page.locator(f"#chart-{name} canvas").evaluate(DRAWN) for name in ("ttft", "tokens")]

        answer = await pulled(front, pods)
        for _ in range(4):
            await front.complete(ids(200), max_tokens=20)
        arrow = page.locator(".arrow")
        await arrow.wait_for(state="attached")
        assert await arrow.count() == 1
        said = await page.locator(".arrow title").text_content()
        assert said == f"{port(pods[1].url)} → {port(pods[0].url)}: {answer.cached} tokens in 1 pulls"
        assert f"{answer.cached} tokens pulled between 1 pairs" in await page.locator("#flow-title").text_content()

        await page.get_by_text("As a table").click()
        cells = await page.locator("#flow-table tbody tr").inner_text()
        assert cells.split() == [pods[1].url[7:], pods[0].url[7:], "1", str(answer.cached)]

        decisions = page.locator("#decisions tbody tr[data-decision]")
        await decisions.nth(4).wait_for()
        await page.locator("#decisions .chip", has_text="named").wait_for()
        await page.select_option("#which", "pulls")
        assert await decisions.count() == 1
        assert f"← {port(pods[1].url)}" in await decisions.inner_text()

        await page.wait_for_timeout(2500)  # the curves have a few seconds to be drawn of
        for name, before in zip(("ttft", "tokens"), empty, strict=True):
            assert len(await page.locator(f"#chart-{name} canvas").evaluate(DRAWN)) > len(before)
        assert re.search(r"median [\d.]+ m?s", await page.locator("#chart-ttft [role=img]").get_attribute("aria-label"))
        assert await page.locator("#tiles dd b").first.inner_text() >= "0.1"
    assert {url.split("/", 3)[2] for url in browser.asked} == {front.url[7:]}


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_request_is_clicked_and_its_table_is_shown(browser: Browser) -> None:
    async with fleet(2, placement=QUEUE_ONLY) as (front, pods), shown(browser, front) as page:
        await pulled(front, pods)
        row = page.locator("#decisions tbody tr[data-decision]").first
        await row.locator(".chip", has_text="200").wait_for()
        await row.locator("td").nth(3).click()  # anywhere in it
        dialog = page.locator("#decision")
        table = dialog.locator("table.candidates")
        await table.wait_for()
        text = await dialog.inner_text()
        assert f"It pulls from {port(pods[1].url)}" in text
        assert "640 tokens" in text
        candidates = table.locator("tbody tr")
        assert await candidates.count() == 2
        chosen = table.locator("tr.chosen")
        assert port(pods[0].url) in await chosen.inner_text()
        assert "queue" in await table.locator("thead").inner_text()
        await page.locator("#decision-close").click()
        assert not await dialog.is_visible()


async def test_all_of_it_can_be_done_with_keys(browser: Browser) -> None:
    async with fleet() as (front, _), shown(browser, front) as page:
        await front.complete(ids(100))
        await page.locator("#decisions tbody tr[data-decision] .chip", has_text="200").wait_for()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        passed = []
        for _ in range(30):
            await page.keyboard.press("Tab")
            here = await page.evaluate("document.activeElement.id || document.activeElement.className")
            passed.append(here)
            if "link" in here:
                break
        assert {"flow-span", "which"} <= set(passed)
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        await page.keyboard.press("Enter")
        await page.locator("#decision table").wait_for()
        await page.keyboard.press("Escape")
        assert not await page.locator("#decision").is_visible()
        assert "link" in await page.evaluate("document.activeElement.className")  # where it was
        await page.focus("#prompt")
        await page.keyboard.type("Hello")
        for _ in range(3):
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.locator("#ask-answer table").wait_for()


async def test_what_somebody_is_about_to_click_does_not_move(browser: Browser) -> None:
    async with fleet() as (front, _), shown(browser, front) as page:
        rows = page.locator("#decisions tbody tr[data-decision]")
        await front.complete([1])
        await rows.first.wait_for()
        await rows.first.locator("td").nth(2).hover()
        await front.complete([2])
        await page.locator("#held", has_text="1 more").wait_for()
        assert await rows.count() == 1
        await page.mouse.move(5, 5)
        await rows.nth(1).wait_for()
        assert await rows.first.get_attribute("data-decision") == "2"


async def test_it_says_where_a_prompt_would_go(browser: Browser) -> None:
    async with fleet(2) as (front, pods), shown(browser, front) as page:
        prompt = ids(320)
        await warm(pods[1], prompt)
        await front.settled(pods[1])
        await page.fill("#prompt", msgspec.json.encode({"prompt": prompt}).decode())
        await page.click("#ask button")
        answer = page.locator("#ask-answer")
        await answer.locator("table").wait_for()
        assert f"On {port(pods[1].url)}, of 2 candidates" in await answer.inner_text()
        await page.fill("#prompt", "Where would this go?")
        await page.click("#ask button")
        await answer.get_by_text("tokenized by a pod").wait_for()
        await page.fill("#prompt", '{"model": "nobody", "prompt": [1]}')
        await page.click("#ask button")
        await page.locator("#ask-problem:not([hidden])").wait_for()
        assert await answer.inner_text() == ""
        (complaint,) = browser.complaints  # the browser's own, of the 404
        assert "404" in complaint
        browser.complaints.clear()
        assert not [request for request in pods[0].requests if request.path == "/v1/chat/completions"]


async def test_light_and_dark_follow_the_system_until_one_is_chosen(browser: Browser) -> None:
    async with fleet() as (front, _), shown(browser, front, theme="dark") as page:
        dark = await page.evaluate(BACK)
        await page.emulate_media(color_scheme="light")
        light = await page.evaluate(BACK)
        assert dark != light
        await page.click("#theme")  # auto → light
        await page.click("#theme")  # → dark
        assert await page.inner_text("#theme") == "Theme: dark"
        assert await page.evaluate(BACK) == dark
        await page.reload()
        await live(page)
        assert await page.evaluate(BACK) == dark
        await page.click("#theme")
        assert await page.evaluate(BACK) == light  # the system's again


@pytest.mark.parametrize("width", [320, 375, 768])
@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_nothing_scrolls_sideways_on_a_phone(browser: Browser, width: int) -> None:
    async with fleet(3, placement=QUEUE_ONLY) as (front, pods), shown(browser, front, width=width, height=740) as page:
        await pulled(front, pods)
        await front.complete(ids(50), headers={"x-request-id": "r" * 128})
        await page.locator("#decisions tbody tr[data-decision]").nth(1).wait_for()
        assert await page.evaluate(WIDER) == 0
        await page.fill("#prompt", "w" * 300)
        await page.click("#ask button")
        await page.locator("#ask-answer table").wait_for()
        assert await page.evaluate(WIDER) == 0
        await page.locator("#decisions tbody button").first.click()
        box = await page.locator("#decision").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


async def test_a_page_behind_keys_asks_for_one(browser: Browser, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    write(keys, ENTRIES)
    async with fleet(auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as (front, _):
        page = await browser.page()
        await page.goto(f"{front.url}/ui")
        dialog = page.locator("#key-dialog")
        await dialog.wait_for()
        assert await page.evaluate("document.activeElement.id") == "key"
        for wrong, told in (("sk-nobody", "not known"), (ALICE, "no “admin”")):
            await page.fill("#key", wrong)
            await page.keyboard.press("Enter")
            await page.locator("#key-why", has_text=told).wait_for()
        await page.fill("#key", ROOT)
        await page.keyboard.press("Enter")
        await live(page, "1 of 1")
        assert not await dialog.is_visible()
        await front.complete(ids(50))
        await page.locator("#decisions tbody button").first.click()
        await page.locator("#decision table").wait_for()
        await page.locator("#decision-close").click()
        await page.fill("#prompt", "Hello")
        await page.click("#ask button")
        await page.locator("#ask-answer table").wait_for()
        await page.reload()
        await live(page)
        await page.click("#key-button")
        await dialog.wait_for()
        assert await page.locator("#pods tbody tr").count() == 0
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Enter key").click()
        await dialog.wait_for()
        assert all("sk-" not in url for url in browser.asked)
        assert {re.sub(r".*(40[13]).*", r"\1", text) for text in browser.complaints} == {"401", "403"}
        browser.complaints.clear()


async def test_what_clients_and_models_are_called_is_text(browser: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    async with fleet(pod={"model": hostile}) as (front, _), shown(browser, front) as page:
        await front.complete([1], model=hostile, headers={"x-request-id": hostile})
        await page.locator("#decisions tbody button").first.click()
        facts = page.locator("#decision .facts")
        await facts.wait_for()
        assert (await facts.inner_text()).count(hostile) == 2
        assert await page.locator("img").count() == 0
        assert hostile in await page.locator("#pods").inner_text()


async def test_it_comes_back_when_the_gateway_does(browser: Browser) -> None:
    async with simulated() as pods:
        async with running(configuration(pods)) as server, client() as http:
            first = Front(server, http)
            await first.until_ready(1)
            page = await browser.page()
            await page.goto(f"{first.url}/ui")
            await live(page)
            again = at_port(configuration(pods), int(first.url.rpartition(":")[2]))
        await page.locator("#link[data-state=lost]").wait_for()
        async with running(again) as server, client() as http:
            await Front(server, http).until_ready(1)
            await live(page, "1 of 1")
            await page.context.close()
        assert all("ERR_" in complaint for complaint in browser.complaints)  # while nobody was there
        browser.complaints.clear()


def at_port(config: Config, number: int) -> Config:
    return msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, port=number))


async def test_a_page_that_is_paused_costs_nothing(browser: Browser) -> None:
    async with fleet() as (front, _), shown(browser, front) as page:
        await page.click("#pause")
        await until(lambda: not front.parts.live_view.viewers)
        assert await page.get_attribute("#pause", "aria-pressed") == "true"
        await page.click("#pause")
        await live(page)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_checker_of_accessibility_finds_nothing(browser: Browser, theme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed")
    async with fleet(2, placement=QUEUE_ONLY) as (front, pods), shown(browser, front, theme=theme) as page:
        await pulled(front, pods)
        await front.post("/v1/completions", {"model": MODEL, "prompt": 1})
        await page.locator("#decisions .chip", has_text="200").first.wait_for()
        await page.get_by_text("As a table").click()
        await page.fill("#prompt", "Hello")
        await page.click("#ask button")
        await page.locator("#ask-answer table").wait_for()
        assert await violations(page) == []
        await page.locator("#decisions tbody button").first.click()
        await page.locator("#decision table").wait_for()
        assert await violations(page) == []
        await page.set_viewport_size({"width": 375, "height": 740})
        await page.keyboard.press("Escape")
        assert await violations(page) == []


async def violations(page: Any) -> list[str]:
    """What axe finds, as `rule: where`. It is evaluated past the page's policy, which would not load it."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node.get('failureSummary')}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


async def test_ten_pages_see_the_same(browser: Browser) -> None:
    async with fleet() as (front, _):
        pages = [await browser.page(width=800) for _ in range(10)]
        await asyncio.gather(*(page.goto(f"{front.url}/ui") for page in pages))
        await asyncio.gather(*(live(page) for page in pages))
        assert front.parts.live_view.viewers == 10
        await front.complete([1])
        await asyncio.gather(*(page.locator("#decisions tbody tr[data-decision]").wait_for() for page in pages))
