"""Who may ask what, and what becomes of the keys that clients present."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from yarl import URL

from tests.gateway.fleet import (
    MODEL,
    SLOW,
    Answer,
    Front,
    client,
    completions,
    connection,
    fleet,
    serving,
    simulated,
    text_body,
    until,
)
from tests.gateway.keyring import ALICE, BOB, ENTRIES, ROOT, bearer, write
from tests.gateway.scripted import says, scripted


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    write(file, ENTRIES)
    return file


@asynccontextmanager
async def keyed(keys: Path, **options: Any) -> AsyncIterator[tuple[Front, Any]]:
    """A gateway that asks for keys, whose operator has one; a client starts with none."""
    session = {"headers": bearer(ROOT)}
    async with fleet(auth={"keys": str(keys)}, session=session, **options) as (front, (pod,)), client() as http:
        asked = Client(front, http)
        yield asked, pod


class Client(Front):
    """A front whose own requests carry no key, while what tests ask as an operator does."""

    def __init__(self, front: Front, http: Any) -> None:
        self.url, self.operators_url, self.parts = front.url, front.operators_url, front.parts
        self.http = http
        self._operator = front

    async def _operator_gets(self, path: str) -> Answer:
        return await self._operator._operator_gets(path)


def assert_refused(answer: Answer, status: int, code: str) -> None:
    assert answer.status == status, answer.body
    assert answer.json["error"]["code"] == code
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "headers",
    [
        bearer(ALICE),
        {"authorization": f"bearer  {ALICE} "},
        {"x-api-key": ALICE},
        {"authorization": "Basic x", "x-api-key": ALICE},
    ],
)
async def test_a_known_key_serves_in_openais_and_in_anthropics_way(headers: dict[str, str], keys: Path) -> None:
    async with keyed(keys) as (front, pod):
        assert (await front.complete([1], headers=headers)).pod == pod.url


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "no_key"),
        ({"authorization": "Bearer "}, "no_key"),
        ({"authorization": ALICE}, "no_key"),
        ({"authorization": "Basic c2s="}, "no_key"),
        (bearer("sk-nobody"), "unknown_key"),
        (bearer(ALICE.upper()), "unknown_key"),
        (bearer(ALICE + "x"), "unknown_key"),
        (bearer(sha256(BOB.encode()).hexdigest()), "unknown_key"),
    ],
)
async def test_without_a_known_key_a_request_is_refused(headers: dict[str, str], reason: str, keys: Path) -> None:
    async with keyed(keys) as (front, pod):
        answer = await front.post("/v1/completions", text_body([1]), headers)
        assert_refused(answer, 401, "invalid_api_key")
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert await front.metric("refused_total", reason=reason) == 1
    assert completions(pod) == []


async def test_a_key_of_bytes_that_are_no_text_is_not_known(keys: Path) -> None:
    async with keyed(keys) as (front, _), connection(front) as (reader, writer):
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer sk-\xff\xc3\x28\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", f"/v1/models/{MODEL}"),
        ("GET", "/metrics"),
        ("GET", "/pods"),
        ("POST", "/explain"),
        ("GET", "/index/snapshot"),
        ("POST", "/tokenize"),
        ("GET", "/v1/nothing"),
        ("GET", "/nothing"),
        ("GET", "//health"),
        ("GET", "/health/../metrics"),
        ("GET", "/%6detrics"),
    ],
)
async def test_nothing_but_the_probes_is_open(method: str, path: str, keys: Path) -> None:
    async with keyed(keys) as (front, _):
        async with front.http.request(method, URL(front.url + path, encoded=True), data=b"") as answer:
            assert answer.status == 401, path
        assert (await front.get("/health")).status == 200
        assert (await front.get("/ready")).status == 200


async def test_what_operators_ask_needs_a_key_with_admin(keys: Path) -> None:
    async with keyed(keys) as (front, _):
        for path in ("/metrics", "/pods", "/index/snapshot", "/%6detrics"):
            assert_refused(await front.get(path, **bearer(ALICE)), 403, "admin_key_required")
            assert (await front.get(path, **bearer(ROOT))).status == 200
        assert_refused(await front.post("/explain", text_body([1]), bearer(ALICE)), 403, "admin_key_required")
        assert (await front.post("/explain", text_body([1]), bearer(ROOT))).status == 200
        assert await front.metric("refused_total", reason="not_admin") == 5


async def test_metrics_can_be_left_open(keys: Path) -> None:
    async with fleet(auth={"keys": str(keys), "open_metrics": True}, session={"headers": bearer(ROOT)}) as (front, _):
        async with client() as http, http.get(f"{front.url}/metrics") as answer:
            assert answer.status == 200
        async with client() as http, http.get(f"{front.url}/pods") as answer:
            assert answer.status == 401


async def test_a_key_reaches_the_models_it_names_and_no_others(keys: Path) -> None:
    async with (
        simulated(model=MODEL) as (one,),
        simulated(model="other") as (two,),
        serving([one, two], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as front,
    ):

        async def listed(key: str) -> set[str]:
            return {card["id"] for card in (await front.get("/v1/models", **bearer(key))).json["data"]}

        assert (await listed(ALICE), await listed(BOB), await listed(ROOT)) == ({MODEL}, {"other"}, {MODEL, "other"})
        assert (await front.get("/v1/models/other", **bearer(ALICE))).status == 404
        assert (await front.get("/v1/models/other", **bearer(BOB))).status == 200
        assert (await front.complete([1], headers=bearer(ALICE))).pod == one.url
        for model in ("other", "nobody knows it"):
            answer = await front.post("/v1/completions", text_body([1], model=model), bearer(ALICE))
            assert_refused(answer, 403, "model_not_allowed")
            assert answer.json["error"]["param"] == "model"
        assert await front.metric("refused_total", reason="model") == 2
        assert await front.metric("key_requests_total", key="alice", status="403") == 2
    assert completions(two) == []


async def test_a_model_that_is_not_named_must_be_allowed_as_well(keys: Path) -> None:
    async with keyed(keys) as (front, pod):
        assert (await front.post("/v1/completions", {"prompt": [1]}, bearer(ALICE))).status == 200
        assert_refused(await front.post("/v1/completions", {"prompt": [1]}, bearer(BOB)), 403, "model_not_allowed")
    assert len(completions(pod)) == 1


async def test_a_key_has_as_many_requests_under_way_as_it_may(keys: Path) -> None:
    async with keyed(keys, pod={"profile": SLOW}) as (front, pod):
        body = text_body([1], stream=True, max_tokens=200)
        async with front.http.post(f"{front.url}/v1/completions", json=body, headers=bearer(ALICE)) as stream:
            await stream.content.readany()
            answer = await front.post("/v1/completions", text_body([1]), bearer(ALICE))
            assert_refused(answer, 429, "rate_limit_exceeded")
            assert answer.headers["retry-after"] == "1"
            assert await front.metric("refused_total", reason="key_limit") == 1
            assert (await front.get("/v1/models", **bearer(ALICE))).status == 200
            assert (await front.complete([1], headers=bearer(ROOT))).pod == pod.url
        # That client has left, in the middle: its place is free again.
        await until(lambda: completions(pod)[0].outcome == "aborted")
        for _ in range(3):
            await front.complete([1], headers=bearer(ALICE))


async def test_requests_and_log_lines_carry_the_keys_id(keys: Path, tmp_path: Path) -> None:
    access = tmp_path / "access.log"
    async with keyed(keys, access_log={"path": str(access)}) as (front, _):
        await front.complete([1], headers=bearer(ALICE))
        await front.complete([1], headers=bearer(ROOT))
        assert await front.metric("key_requests_total", key="alice", status="200") == 1
        assert await front.metric("key_requests_total") == 2
    assert [json.loads(line)["key"] for line in access.read_text().splitlines()] == ["alice", "root"]


async def test_a_changed_file_is_in_force_without_a_restart(keys: Path) -> None:
    async with keyed(keys) as (front, _):
        write(keys, [*ENTRIES[1:], {"id": "carol", "key": "sk-carol"}])

        async def status(key: str) -> int:
            return (await front.get("/v1/models", **bearer(key))).status

        async def carol_is_known() -> bool:
            return await status("sk-carol") == 200

        await until(carol_is_known)
        assert (await status(ALICE), await status(ROOT)) == (401, 200)
        assert await front.metric("file_reloads_total", file="keys", result="ok") == 1


async def test_a_file_swapped_by_its_link_is_seen(tmp_path: Path) -> None:
    for name, key in (("old", "sk-old"), ("new", "sk-new")):
        write(tmp_path / name, [{"id": name, "key": key}, ENTRIES[2]])
    link = tmp_path / "keys.yaml"
    link.symlink_to(tmp_path / "old")
    async with keyed(link) as (front, _):
        (tmp_path / "next").symlink_to(tmp_path / "new")
        (tmp_path / "next").replace(link)

        async def is_new() -> bool:
            return (await front.get("/v1/models", **bearer("sk-new"))).status == 200

        await until(is_new)


@pytest.mark.parametrize("content", ["keys: [{id: a, key: }]", "keys: [", "sk-leaked: 1", None])
async def test_a_bad_new_file_keeps_the_old_keys_and_says_why(
    content: str | None, keys: Path, log: list[MutableMapping[str, Any]]
) -> None:
    async with keyed(keys) as (front, _):
        if content is None:
            keys.unlink()
        else:
            keys.write_text(content)

        async def counted() -> bool:
            return await front.metric("file_reloads_total", file="keys", result="failed") == 1

        await until(counted)
        await front.complete([1], headers=bearer(ALICE))
        write(keys, ENTRIES[1:])

        async def alice_is_gone() -> bool:
            return (await front.get("/v1/models", **bearer(ALICE))).status == 401

        await until(alice_is_gone)
    (warning,) = [entry for entry in log if entry["event"].startswith("changed file not used")]
    assert warning["file"].startswith(f"{keys}: ")
    assert "sk-" not in warning["file"].replace(str(keys), "")


async def test_requests_count_for_their_key_across_a_change_of_the_file(keys: Path) -> None:
    async with keyed(keys, pod={"profile": SLOW}) as (front, pod):
        body = text_body([1], stream=True, max_tokens=5000)
        async with front.http.post(f"{front.url}/v1/completions", json=body, headers=bearer(ALICE)) as stream:
            await stream.content.readany()
            write(keys, [{"id": "alice", "key": "sk-new-one", "max_concurrent": 1}, ENTRIES[2]])

            async def is_new() -> bool:
                return (await front.get("/v1/models", **bearer("sk-new-one"))).status == 200

            await until(is_new)
            assert (await front.post("/v1/completions", text_body([1]), bearer("sk-new-one"))).status == 429
            assert await stream.content.readany()
        await until(lambda: completions(pod)[0].outcome == "aborted")
        await front.complete([1], headers=bearer("sk-new-one"))


async def test_clients_keys_stop_at_a_gateway_that_asks_for_them(keys: Path) -> None:
    async with (
        scripted(completions=says({"ok": True})) as pod,
        serving([pod], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as front,
    ):
        await front.complete([1])
        await front.complete([1], headers={"authorization": "Basic x", "x-api-key": ROOT})
    assert len(pod.requests) == 2
    for arrived in pod.requests:
        assert not {"authorization", "x-api-key"} & arrived.headers.keys()


async def test_without_keys_what_clients_present_is_the_pods_business() -> None:
    async with scripted(completions=says({"ok": True})) as pod, serving([pod]) as front:
        sent = {"authorization": "Bearer theirs", "x-api-key": "theirs too"}
        await front.complete([1], headers=sent)
    assert sent.items() <= pod.requests[-1].headers.items()


@pytest.mark.parametrize("with_keys", [False, True])
async def test_a_pods_own_key_is_shown_to_it_on_every_call(with_keys: bool, keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "pod-key"
    file.write_text("sk-pod\n")
    auth = {"keys": str(keys)} if with_keys else {}
    async with (
        scripted(completions=says({"ok": True}), tokenize=says({"tokens": [1]})) as pod,
        serving(
            [{"url": pod.url, "api_key_file": str(file)}],
            auth=auth,
            p2p={"probe": True},
            session={"headers": bearer(ROOT)},
        ) as front,
    ):
        await front.complete("a text", headers=bearer(ROOT))
        assert {arrived.path for arrived in pod.asked} >= {"/health", "/metrics", "/v1/models", "/kv_event_sources"}
        assert {arrived.path for arrived in pod.requests} == {"/tokenize", "/v1/completions"}
        assert {arrived.headers.get("authorization") for arrived in (*pod.asked, *pod.requests)} == {"Bearer sk-pod"}
        file.write_text("sk-rotated")
        await until(lambda: pod.asked[-1].headers["authorization"] == "Bearer sk-rotated")


async def test_a_pods_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_KEY", "sk-pod")
    async with scripted(completions=says({"ok": True})) as pod, scripted(completions=says({"ok": True})) as other:
        entries = [{"url": pod.url, "api_key_env": "POD_KEY"}, {"url": other.url}]
        async with serving(entries) as front:
            await front.complete([1])
    assert {arrived.headers.get("authorization") for arrived in pod.asked} == {"Bearer sk-pod"}
    assert {arrived.headers.get("authorization") for arrived in other.asked} == {None}


async def test_the_openai_client_sees_its_own_kinds_of_errors(keys: Path) -> None:
    async with keyed(keys, pod={"profile": SLOW}) as (front, _):

        def api(key: str) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)

        async with api(ALICE) as alice, api(BOB) as bob, api("sk-nobody") as nobody:
            assert [model.id async for model in alice.models.list()] == [MODEL]
            stream = await alice.completions.create(model=MODEL, prompt="hi", max_tokens=500, stream=True)
            await anext(aiter(stream))
            with pytest.raises(openai.RateLimitError) as limited:
                await alice.completions.create(model=MODEL, prompt="hi")
            assert limited.value.code == "rate_limit_exceeded"
            await stream.close()
            with pytest.raises(openai.PermissionDeniedError):
                await bob.completions.create(model=MODEL, prompt="hi")
            with pytest.raises(openai.AuthenticationError) as unknown:
                await nobody.completions.create(model=MODEL, prompt="hi")
            assert unknown.value.code == "invalid_api_key"


async def test_many_wrong_keys_leave_right_ones_alone(keys: Path) -> None:
    async with keyed(keys) as (front, _):
        wrong = [front.post("/v1/completions", text_body([1]), bearer(f"sk-{n}")) for n in range(50)]
        statuses = {answer.status for answer in await asyncio.gather(*wrong)}
        assert statuses == {401}
        await front.complete([1], headers=bearer(ALICE))
