"""The live page over HTTP: what it is made of, who gets what it shows, and that nobody pays who does not look."""

import asyncio
import re
import shutil
import socket
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from blockbuster import blockbuster_ctx

from gateway.explained import explanation
from gateway.web import live, observer
from gateway.web.live import LiveView, TooSlow
from tests.gateway.fleet import (
    DEADLINE_S,
    MODEL,
    QUEUE_ONLY,
    SLOW,
    Front,
    client,
    connection,
    fleet,
    ids,
    simulated,
    text_body,
    until,
    warm,
)
from tests.gateway.keyring import ALICE, ENTRIES, ROOT, bearer, write
from tests.gateway.test_lifecycle import stoppable

STATIC = Path(live.__file__).parent / "static"
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
OURS = sorted(path for path in STATIC.rglob("*.*") if path.suffix[1:] in KINDS and path.parent == STATIC)
Event = tuple[str, Any]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second takes less."""
    monkeypatch.setattr(live, "_EVERY_S", 0.05)


class Viewer:
    """Somebody who looks: the events of one stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def event(self) -> Event:
        async with asyncio.timeout(DEADLINE_S):
            text = (await self.answer.content.readuntil(b"\n\n")).decode()
        found = re.fullmatch(r"event: (\w+)\ndata: (.*)\n\n", text)
        assert found, text
        return found[1], msgspec.json.decode(found[2])

    async def until(self, condition: Any) -> list[Any]:
        """Data of the events up to the first that meets it."""
        seen: list[Any] = []
        while not seen or not condition(seen[-1]):
            seen.append((await self.event())[1])
        return seen


@asynccontextmanager
async def viewer(front: Front, **headers: str) -> AsyncIterator[Viewer]:
    async with front.http.get(f"{front.operators_url}/ui/events", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store"
        yield Viewer(answer)


def ended(count: int) -> Any:
    """Meets when so many decisions were told to be over."""
    over: set[int] = set()

    def met(data: Any) -> bool:
        over.update(row["n"] for row in data["decisions"] if row["state"] in ("done", "retried"))
        return len(over) >= count

    return met


def latest(seen: list[Any]) -> list[Any]:
    """The rows of decisions, each as it was told last."""
    rows = {row["n"]: row for data in seen for row in data["decisions"]}
    return [rows[number] for number in sorted(rows)]


def total(seen: list[Any], field: str) -> int:
    return sum(data["second"][field] for data in seen if "second" in data)


# The page

_FOLLOWS = """
import { Stream } from "./stream.mjs";
const pieces = process.argv.slice(2).map((piece) => new TextEncoder().encode(piece));
globalThis.fetch = async () => new Response(new ReadableStream({
  start: (into) => {
    pieces.forEach((piece) => into.enqueue(piece));
    into.close();
  },
}));
const state = () => {
  stream.stop();
  process.exit();
};
const stream = new Stream({
  url: "http://x",
  headers: () => ({}),
  told: (name, data) => console.log(JSON.stringify([name, data])),
  state,
  refused: state,
});
stream.start();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
async def test_the_page_reads_events_whatever_is_in_a_name(tmp_path: Path) -> None:
    """JSON leaves these letters as they are, and a regular expression takes them for the end of a line."""
    events = [("welcome", {"models": ["a\u2028b", "a\u2029b", "a\x85b"]}), ("second", {"second": {"t": 1}})]
    text = "".join(f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n" for name, data in events)
    (tmp_path / "stream.mjs").write_bytes((STATIC / "stream.js").read_bytes())
    (tmp_path / "follows.mjs").write_text(_FOLLOWS)
    command = ("node", str(tmp_path / "follows.mjs"), text[:40], text[40:])
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err) == (0, b"")
    assert [msgspec.json.decode(line) for line in out.split(b"\n") if line] == [[*event] for event in events]


async def test_the_page_and_its_files_are_served_and_may_load_nothing_else() -> None:
    async with fleet() as (front, _):
        for path in (
            "/ui",
            *(f"/ui/{file.name}" for file in OURS if file.suffix != ".html"),
            "/ui/vendor/uPlot.iife.min.js",
        ):
            answer = await front.get(path)
            kind = "html" if path == "/ui" else path.rpartition(".")[2]
            assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, KINDS[kind]), path
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await front.get(path, **{"if-none-match": answer.headers["etag"]})
            assert (again.status, again.body) == (304, b"")
        for path in (
            "/ui/nothing.js",
            "/ui/index.html",
            "/ui/vendor/uPlot.LICENSE",
            "/ui/..%2f..%2fapp.py",
            "/ui/vendor/..%2fapp.js",
        ):
            assert (await front.get(path)).status == 404
        async with front.http.get(f"{front.url}/ui/", allow_redirects=False) as moved:
            assert (moved.status, moved.headers["location"]) == (308, "../ui")
        assert await front.metric("requests_total") == 0  # it is what operators ask, and not counted


async def test_all_that_the_page_refers_to_is_there_and_ours() -> None:
    async with fleet() as (front, _):
        page = (await front.get("/ui")).body.decode()
        named = {name for name in re.findall(r'(?:src|href)="([^"#]+)"', page) if name not in ("pods", "metrics")}
        assert len(named) >= 6
        for name in named:
            assert (await front.get(f"/{name}")).status == 200, name
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", page)
    for file in OURS:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text.replace("https?:\\/\\/", ""), file
        for module in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / module).is_file()


def test_what_others_wrote_is_as_they_released_it() -> None:
    vendor = STATIC / "vendor"
    listed = dict(re.findall(r"^\| `([^`]+)` \| `(\w{64})` \|$", (vendor / "README.md").read_text(), re.MULTILINE))
    files = {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")}
    assert listed == {name: sha256((vendor / name).read_bytes()).hexdigest() for name in files}


async def test_the_page_is_open_and_what_it_shows_needs_a_key_with_admin(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    write(keys, ENTRIES)
    async with fleet(auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as (front, _), client() as http:

        async def status(path: str, **headers: str) -> int:
            async with http.get(front.url + path, headers=headers) as answer:
                return answer.status

        assert [await status(path) for path in ("/ui", "/ui/app.js", "/ui/nothing")] == [200, 200, 404]
        for path in ("/ui/events", "/ui/decisions/1"):
            asked = [await status(path), await status(path, **bearer(ALICE)), await status(f"{path}?key={ROOT}")]
            assert asked == [401, 403, 401]
        assert await status("/ui/decisions/1", **bearer(ROOT)) == 404
        async with viewer(front) as looks:
            assert (await looks.event())[0] == "welcome"


async def test_it_is_where_operators_ask() -> None:
    async with fleet(admin={"port": 0}) as (front, _):
        for path in ("/ui", "/ui/app.js", "/ui/events"):
            assert (await front.get(path)).status == 404
        async with front.http.get(f"{front.operators_url}/ui") as page:
            assert page.status == 200
        async with viewer(front) as looks:
            assert (await looks.event())[0] == "welcome"


# What is shown


@pytest.mark.usefixtures("quick", "ties_go_to_the_first")
async def test_a_viewer_sees_pods_requests_and_pulls() -> None:
    prompt = ids(640)
    async with fleet(2, placement=QUEUE_ONLY) as (front, (first, holder)):
        await warm(holder, prompt)
        await front.settled(holder)
        async with viewer(front) as looks:
            kind, welcome = await looks.event()
            assert (kind, welcome["decisions"], welcome["viewers"]) == ("welcome", [], 1)
            assert [(pod["url"], pod["state"]) for pod in welcome["pods"]] == [
                (p.url, "ready") for p in (first, holder)
            ]
            answer = await front.complete(prompt, max_tokens=5)
            assert (answer.pod, answer.source) == (first.url, holder.url)
            seen = await looks.until(ended(1))
        (row,) = latest(seen)
        names = [url.removeprefix("http://") for url in (first.url, holder.url)]
        assert [row["pod"], row["source"]] == names
        assert (row["reason"], row["tokens"], row["reported_cached"], row["status"]) == (
            "named",
            640,
            answer.cached,
            200,
        )
        assert 0 < row["taken_ms"] <= row["ttft_ms"] <= row["duration_ms"]
        told = {
            name: total(seen, name) for name in ("requests", "failed", "prompt", "cached", "generated", "first_tokens")
        }
        assert told == {
            "requests": 1, "failed": 0, "prompt": 640, "cached": answer.cached, "generated": 5, "first_tokens": 1
        }  # fmt: skip
        assert [each for data in seen if "second" in data for each in data["second"]["pulls"]] == [
            [names[1], names[0], 1, row["pulled"]]
        ]
        assert row["pulled"] == answer.cached
        pulled = {data["second"]["pulled_p50_ms"] for data in seen if "second" in data}
        assert pulled - {None} == {row["ttft_ms"]}
        rows = seen[-1]["pods"]
        assert rows[1]["cached_blocks"]["cpu"] >= 640 // 16


@pytest.mark.usefixtures("quick")
async def test_a_decision_is_explained_as_it_was_when_it_was_made() -> None:
    prompt = ids(320)
    async with fleet(2) as (front, pods), viewer(front) as looks:
        before = await front.explain(prompt)
        await front.complete(prompt)
        (row,) = latest(await looks.until(ended(1)))
        await front.settled(*pods)
        found = (await front.get(f"/ui/decisions/{row['n']}")).json
        assert found["request"] == row
        assert found["decision"].keys() == before.keys()
        assert found["decision"]["candidates"][0].keys() == before["candidates"][0].keys()
        cached = [each["cached_tokens"]["any"] for each in found["decision"]["candidates"]]
        assert cached == [0, 0]  # by now one of them has it
        assert max(each["cached_tokens"]["any"] for each in (await front.explain(prompt))["candidates"]) > 0
        for nothing in ("0", "99", "x", "-1", "9" * 30, "1.5"):
            refused = await front.get(f"/ui/decisions/{nothing}")
            assert (refused.status, refused.json["error"]["code"]) == (404, "decision_not_found")


@pytest.mark.usefixtures("quick", "ties_go_to_the_first")
async def test_a_decision_that_came_to_nothing_is_told_from_the_one_that_followed() -> None:
    async with fleet(2) as (front, (first, second)), viewer(front) as looks:
        first.fail_next(503, 1)
        await front.complete([1, 2, 3])
        rows = latest(await looks.until(ended(2)))
        assert [(row["state"], row["attempt"]) for row in rows] == [("retried", 1), ("done", 2)]
        assert rows[1]["pod"] == second.url.removeprefix("http://")
        assert rows[1]["status"] == 200


@pytest.mark.usefixtures("quick")
async def test_a_request_is_seen_while_it_streams() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, _), viewer(front) as looks:
        body = text_body([1, 2, 3], stream=True, max_tokens=100)
        async with front.http.post(f"{front.url}/v1/completions", json=body) as answer:
            await answer.content.readany()
            seen = await looks.until(lambda data: any(row["state"] == "streaming" for row in data["decisions"]))
            assert "duration_ms" not in latest(seen)[-1]
            assert latest(seen)[-1]["taken_ms"] > 0
            assert total(seen, "first_tokens") == 1
            assert total(seen, "requests") == 0
        seen = await looks.until(ended(1))
        assert latest(seen)[-1]["status"] == 499  # it has left


@pytest.mark.usefixtures("quick")
async def test_what_fails_is_counted_as_failed() -> None:
    async with fleet() as (front, _), viewer(front) as looks:
        assert (await front.post("/v1/completions", text_body([1], model="nobody's"))).status == 404
        seen = await looks.until(lambda data: "second" in data and data["second"]["requests"])
        assert (total(seen, "requests"), total(seen, "failed")) == (1, 1)


# Who looks


@pytest.mark.usefixtures("quick")
async def test_nothing_is_kept_or_made_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    explained = explanation

    def counted(decision: Any) -> Any:
        nonlocal made
        made += 1
        return explained(decision)

    monkeypatch.setattr(observer, "explanation", counted)
    async with fleet() as (front, _):
        view = front.parts.live_view
        await front.complete([1])
        await front.get("/ui")
        assert (made, view._number) == (0, 0)
        async with viewer(front) as looks:
            assert (await looks.event())[1]["decisions"] == []
            await front.complete([2])
            await looks.until(ended(1))
        await until(lambda: not view.viewers)
        number = view._number
        await front.complete([3])
        assert (made, view._number) == (1, number)
        async with viewer(front) as looks:  # what earlier viewers saw is there for a while
            welcome = (await looks.event())[1]
            assert [row["n"] for row in welcome["decisions"]] == [1]
            assert sum(each["requests"] for each in welcome["history"]) == 1


@pytest.mark.usefixtures("quick")
async def test_a_request_that_outlasts_its_viewers_is_forgotten() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, _):
        body = text_body([1, 2, 3], stream=True, max_tokens=60)
        async with front.http.post(f"{front.url}/v1/completions", json=body) as answer:
            async with viewer(front) as looks:
                await looks.event()
                unseen = asyncio.create_task(front.complete([4, 5], max_tokens=20))
                await looks.until(lambda data: any(row["state"] == "waiting" for row in data["decisions"]))
            await until(lambda: not front.parts.live_view.viewers)
            await unseen
            assert (await front.get("/ui/decisions/1")).status == 404
            async with viewer(front) as looks:
                assert (await looks.event())[1]["decisions"] == []
            await answer.content.readany()


@pytest.mark.usefixtures("quick")
async def test_viewers_share_what_is_made() -> None:
    async with fleet() as (front, _), viewer(front) as one, viewer(front) as other:
        assert [(await each.event())[0] for each in (one, other)] == ["welcome", "welcome"]
        await front.complete([1])
        seen = [await each.until(ended(1)) for each in (one, other)]
        assert [total(each, "requests") for each in seen] == [1, 1]
        assert latest(seen[0]) == latest(seen[1])
        assert front.parts.live_view.viewers == 2


@pytest.mark.usefixtures("quick")
async def test_no_more_may_look_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "VIEWERS", 1)
    async with fleet() as (front, _):
        async with viewer(front) as looks:
            await looks.event()
            refused = await front.get("/ui/events")
            assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
            assert await front.metric("refused_total", reason="viewers") == 1
        await until(lambda: not front.parts.live_view.viewers)
        async with viewer(front) as looks:
            assert (await looks.event())[0] == "welcome"


async def test_who_does_not_take_what_is_sent_is_dropped_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_EVERY_S", 0.01)
    monkeypatch.setattr(live, "_WRITE_S", 0.3)
    large = live._event

    def padded(name: str, data: object) -> bytes:
        return large(name, {**data, "pad": "x" * 100_000} if isinstance(data, dict) else data)

    monkeypatch.setattr(live, "_event", padded)
    async with fleet() as (front, _), viewer(front) as looks:
        host, _, port = front.url.removeprefix("http://").rpartition(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, int(port)))
            slow.sendall(b"GET /ui/events HTTP/1.1\r\nHost: gateway\r\n\r\n")
            seen = await looks.until(lambda data: data["viewers"] == 2)
            seen = await looks.until(lambda data: data["viewers"] == 1)
            assert len(seen) > 1
        assert await front.metric("dropped_viewers_total") == 1
        await looks.event()


async def test_who_falls_too_far_behind_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_EVERY_S", 0.01)
    async with fleet() as (front, _):
        view: LiveView = front.parts.live_view
        written = 0

        async def slowly(_: bytes) -> None:
            nonlocal written
            written += 1
            if written == 3:
                number = view._number
                async with viewer(front) as other:
                    await other.until(lambda _: view._number > number + live._BEHIND)

        with pytest.raises(TooSlow):
            await view.follow(slowly)
        assert written == 3
        await until(lambda: not view.viewers)


# Bounds


@pytest.mark.usefixtures("quick")
async def test_only_the_latest_decisions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "DECISIONS", 3)
    monkeypatch.setattr(observer, "_EXPLAINING_S", 60)
    async with fleet() as (front, _), viewer(front) as looks:
        for number in range(5):
            await front.complete([number])
        await looks.until(lambda data: data["second"]["requests"] and any(r["n"] == 5 for r in data["decisions"])
                          if "second" in data else False)  # fmt: skip
        statuses = [(await front.get(f"/ui/decisions/{number}")).status for number in range(1, 6)]
        assert statuses == [404, 404, 200, 200, 200]
        monkeypatch.setattr(observer, "_TABLES_BYTES", 1)
        await front.complete([9])
        assert (await front.get("/ui/decisions/6")).status == 404


@pytest.mark.usefixtures("quick")
async def test_what_there_is_no_time_to_explain_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_EXPLAINING_S", 0)
    async with fleet() as (front, _), viewer(front) as looks:
        await looks.event()
        await front.complete([1])
        seen = await looks.until(lambda data: data["second"]["requests"] == 1)
        assert [total(seen, name) for name in ("decisions", "unexplained", "requests")] == [1, 1, 1]
        assert latest(seen) == []


@pytest.mark.usefixtures("quick")
async def test_what_cannot_be_explained_is_served_all_the_same(
    monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(observer, "explanation", fails)
    async with fleet() as (front, _), viewer(front) as looks:
        await looks.event()
        await front.complete([1])
        await front.complete([2])
        seen = await looks.until(lambda data: data["second"]["requests"])
        while total(seen, "requests") < 2:
            seen.append((await looks.event())[1])
        assert total(seen, "unexplained") == 2
    (fault,) = taken(log)
    assert isinstance(fault["exc_info"], ValueError)


def taken(log: list[MutableMapping[str, Any]]) -> Iterator[MutableMapping[str, Any]]:
    for entry in [each for each in log if each["log_level"] == "error"]:
        log.remove(entry)
        yield entry


# The end


async def test_a_gateway_that_goes_does_not_wait_for_viewers() -> None:
    async with simulated() as (pod,), stoppable(pod) as gateway, connection(gateway.front) as (reader, writer):
        writer.write(b"GET /ui/events HTTP/1.1\r\nHost: gateway\r\n\r\n")
        await reader.readuntil(b"event: welcome")
        clock = asyncio.get_running_loop().time
        began = clock()
        await (await gateway.stop())
        assert clock() - began < 0.8  # of a second, after which the next picture would have been due
        assert b'event: end\ndata: {"reason":"draining"}\n\n' in await reader.read()


async def test_a_gateway_that_goes_does_not_wait_for_one_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet() as (front, _):
        view, hangs = front.parts.live_view, asyncio.Event()

        async def never(_: bytes) -> None:
            await hangs.wait()

        following = asyncio.create_task(view.follow(never))
        await until(lambda: view.viewers == 1)
        clock = asyncio.get_running_loop().time
        began = clock()
        view.close()
        with pytest.raises(TooSlow):
            await following
        assert clock() - began < 2


@pytest.mark.usefixtures("quick")
async def test_nothing_of_it_blocks_the_loop() -> None:
    with blockbuster_ctx(["gateway", "index", "scorers", "config"]):
        async with fleet() as (front, _), viewer(front) as looks:
            assert (await front.get("/ui")).status == (await front.get("/ui/style.css")).status == 200
            await front.complete(ids(200))
            (row,) = latest(await looks.until(ended(1)))
            assert (await front.get(f"/ui/decisions/{row['n']}")).json["request"]["model"] == MODEL
