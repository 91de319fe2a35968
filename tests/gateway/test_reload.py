"""SIGHUP: a changed file is in force as a whole or not at all."""

import asyncio
import signal
from collections.abc import AsyncIterator, MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from blockbuster import blockbuster_ctx

from config.load import Config, decode
from gateway.reload import ConfigFile, until_restart
from gateway.server import running
from tests.gateway.fleet import (
    PREFIX_ONLY,
    SLOW,
    client,
    configuration,
    ids,
    name,
    simulated,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.keyring import ALICE, BOB, ENTRIES, ROOT, bearer, write
from tests.gateway.reloading import begin, reloadable, written
from tests.gateway.test_command import ended, ready, started

QUEUE_FIRST = {"scorers": [{"type": "queue"}], "picker": {"type": "max-score"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


# --- everything else


async def test_scorers_change_placement(file: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one, two], file, placement=PREFIX_ONLY) as gateway:
        front = gateway.front
        await warm(two, ids(400))
        await front.settled(one, two)
        assert (await front.explain(ids(400)))["chosen"] == two.url
        assert await gateway.reload([one, two], placement=QUEUE_FIRST) == "ok"
        told = await front.explain(ids(400))
        assert list(told["candidates"][0]["scores"]) == ["queue"]


async def test_pulls_can_be_switched_off(file: Path) -> None:
    async with simulated(2) as pods, reloadable(pods, file) as gateway:
        await gateway.front.complete(ids(400))
        assert await gateway.reload(pods, p2p={"enabled": False}) == "ok"
        assert (await gateway.front.explain(ids(400)))["source_reason"] == "disabled"


async def test_limits_count_from_the_next_request_on(file: Path) -> None:
    async with simulated(2, profile=SLOW) as (one, two), reloadable([one, two], file) as gateway:
        front = gateway.front
        streams = [await begin(front, max_tokens=30) for _ in range(2)]
        assert await gateway.reload([one, two], limits={"max_concurrent": 1}) == "ok"
        streams.append(await begin(front, max_tokens=30))
        refused = await front.post("/v1/completions", text_body([1]))
        assert (refused.status, refused.json["error"]["code"]) == (503, "overloaded")
        assert await gateway.reload([one, two], limits={"max_concurrent": None}) == "ok"
        await front.complete([1])
        assert all(told.endswith(b"data: [DONE]\n\n") for told in await asyncio.gather(*streams))
        assert await gateway.reload([one, two], limits={"max_concurrent": 1}) == "ok"
        await front.complete([1])


@pytest.mark.parametrize("chunked", [False, True])
async def test_smaller_bodies_only(chunked: bool, file: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield msgspec.json.encode(text_body([1] * 100))

    async with simulated() as (pod,), reloadable([pod], file) as gateway:
        front = gateway.front
        assert await gateway.reload([pod], limits={"max_body": 100}) == "ok"
        body = pieces() if chunked else msgspec.json.encode(text_body([1] * 100))
        async with front.http.post(f"{front.url}/v1/completions", data=body) as answer:
            assert answer.status == 413


async def test_fewer_attempts_and_another_breaker_are_in_force_at_once(file: Path) -> None:
    sections = {"limits": {"attempts": 2}, "breaker": {"failures": 50}}
    async with simulated(2) as pods, reloadable(pods, file, **sections) as gateway:
        front = gateway.front
        for pod in pods:
            pod.fail_next(503, 100)
        await front.post("/v1/completions", text_body([1]))
        assert await front.metric("retries_total") == 1
        assert await gateway.reload(pods, limits={"attempts": 1}, breaker={"failures": 1, "cooldown": 600.0}) == "ok"
        await front.post("/v1/completions", text_body([1]))
        assert await front.metric("retries_total") == 1
        assert await front.metric("pod_breaker_open") == 2


async def test_a_connection_from_now_on_has_the_new_limits(file: Path) -> None:
    async with simulated() as (pod,), reloadable([pod], file) as gateway:
        assert await gateway.reload([pod], limits={"max_headers": 5}) == "ok"
        async with (
            client() as http,
            http.get(f"{gateway.front.url}/health", headers={f"x-{n}": "" for n in range(9)}) as answer,
        ):
            assert answer.status == 431


async def test_the_memo_shrinks_to_its_new_bound(file: Path) -> None:
    async with simulated() as (pod,), reloadable([pod], file) as gateway:
        await gateway.front.complete("a text")
        await gateway.front.complete("a text")
        asked = [request.path for request in pod.requests].count("/tokenize")
        assert await gateway.reload([pod], tokens={"memo_tokens": 0}) == "ok"
        await gateway.front.complete("a text")
        assert [request.path for request in pod.requests].count("/tokenize") == asked + 1


async def test_keys_can_be_asked_for_changed_and_done_without(file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, ENTRIES)
    write(second, [{"id": "bob", "sha256": sha256(BOB.encode()).hexdigest()}])
    async with (
        simulated() as (pod,),
        reloadable([pod], file, admin={"port": 0}) as gateway,
    ):

        async def status(key: str) -> int:
            return (await gateway.front.post("/v1/completions", text_body([1]), bearer(key))).status

        assert await status("nobody") == 200
        assert await gateway.reload([pod], auth={"keys": str(first)}) == "ok"
        assert (await status("nobody"), await status(ALICE), await status(BOB)) == (401, 200, 403)
        assert await gateway.reload([pod], auth={"keys": str(second)}) == "ok"
        assert (await status(ROOT), await status(ALICE), await status(BOB)) == (401, 401, 200)
        write(second, ENTRIES)  # and it is followed, as the first was
        await until_status(status, ALICE, 200)
        assert await gateway.reload([pod], auth={"keys": None}) == "ok"
        assert await status("nobody") == 200


async def until_status(status: Any, key: str, wanted: int) -> None:
    async def seen() -> bool:
        return bool(await status(key) == wanted)

    await until(seen)


async def test_the_access_log_moves_to_another_file(file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with simulated() as (pod,), reloadable([pod], file, access_log={"path": str(first)}) as gateway:
        await gateway.front.complete([1], headers={"x-request-id": "one"})
        assert await gateway.reload([pod], access_log={"path": str(second)}) == "ok"
        await gateway.front.complete([1], headers={"x-request-id": "two"})
    assert '"one"' in first.read_text()
    assert '"two"' not in first.read_text()
    assert '"two"' in second.read_text()


async def test_a_reload_blocks_nobody(file: Path, tmp_path: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one], file) as gateway:
        log = {"path": str(tmp_path / "access.log")}
        with blockbuster_ctx(["gateway", "index", "scorers", "config"]):
            assert await gateway.reload([one, two], access_log=log, tokens={"memo_tokens": 3}) == "ok"
            await gateway.front.until_ready(2)
            gateway.front.parts.access_log.reopen()
            assert await gateway.reload([two], access_log={"enabled": False}) == "ok"
            assert await gateway.reload([two], access_log=log) == "ok"
            await gateway.front.complete([1])


# --- what is refused


BAD: list[tuple[dict[str, Any], str]] = [
    ({"limits": {"attempts": 0}}, "$.limits.attempts"),
    ({"prot": {}}, "prot"),
    ({"auth": {"keys": "none"}}, "$.auth.keys: none: No such file"),
    ({"access_log": {"path": "/"}}, "$.access_log.path: /: Is a directory"),
    ({"listen": {"tls": {"cert": "none", "key": "none"}}}, "$.listen.tls.cert: none: No such file"),
    ({"admin": {"tls": {"cert": "none", "key": "none"}}}, "$.admin.tls.cert: none: No such file"),
    ({"upstream_tls": {"ca": "none"}}, "$.upstream_tls.ca: none: No such file"),
]


@pytest.mark.parametrize(("section", "says"), BAD)
async def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_of_in_one_line(
    section: dict[str, Any],
    says: str,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: list[MutableMapping[str, Any]],
) -> None:
    monkeypatch.chdir(tmp_path)
    async with simulated(2) as (one, two), reloadable([one], file) as gateway:
        front = gateway.front
        loaded = await front.metric("config_loaded_timestamp_seconds")
        data = yaml.safe_load(file.read_text())
        data["pods"] = [spec(two)]
        data["placement"] = PREFIX_ONLY
        for key, value in section.items():
            data[key] = {**data.get(key, {}), **value}
        file.write_text(yaml.safe_dump(data))
        log.clear()
        assert await gateway.again() == "failed"
        (entry,) = [entry for entry in log if entry["log_level"] == "warning"]
        assert entry["error"].startswith(f"{file}: ")
        assert says in entry["error"]
        assert "\n" not in entry["error"]
        assert list(await front.pods()) == [one.url]
        assert list((await front.explain([1]))["candidates"][0]["scores"]) == ["expected-ttft"]
        assert await front.metric("config_reloads_total", result="failed") == 1
        assert await front.metric("config_loaded_timestamp_seconds") == loaded > 0
        assert (await front.complete([1])).pod == one.url


@pytest.mark.parametrize("text", ["", "pods: [", "pods: []"])
async def test_neither_does_one_that_is_no_configuration(text: str, file: Path) -> None:
    async with simulated() as (pod,), reloadable([pod], file) as gateway:
        file.write_text(text)
        assert await gateway.again() == "failed"
        assert (await gateway.front.complete([1])).pod == pod.url
        assert await gateway.reload([pod]) == "ok"


async def test_what_needs_a_restart_is_named_and_the_rest_is_in_force(
    file: Path, log: list[MutableMapping[str, Any]]
) -> None:
    async with simulated(2) as (one, two), reloadable([one], file) as gateway:
        log.clear()
        sections: dict[str, Any] = {"listen": {"port": 1}, "index": {"max_blocks": 5}, "admin": {"port": 0}}
        assert await gateway.reload([two], **sections) == "restart_needed"
        await gateway.front.until_ready(1)
        assert (await gateway.front.complete([1])).pod == two.url
        (entry,) = [entry for entry in log if entry["event"] == "these changes need a restart"]
        assert entry["settings"] == ["listen.port", "admin.port", "index.max_blocks"]
        assert await gateway.front.metric("config_reloads_total", result="restart_needed") == 1
        # They stay as they were for the next comparison too.
        assert await gateway.again() == "restart_needed"


def test_what_waits_for_a_restart_stays_as_it_was() -> None:
    pods = [{"url": "http://h:1"}]
    old = decode({"pods": pods}, source="")
    data: dict[str, Any] = {
        "pods": [*pods, {"url": "http://h:2"}],
        "listen": {"host": "::1", "tls": {"cert": "a", "key": "b"}},
        "limits": {"max_body": 5, "attempts": 9},
    }
    new, waiting = until_restart(old, decode(data, source=""))
    assert waiting == ["listen.host", "listen.tls.cert", "listen.tls.key"]
    assert new.listen == old.listen
    assert (new.limits.max_body, new.limits.attempts) == (5, 9)
    assert len(new.pods) == 2


async def test_an_unexpected_fault_is_logged_and_the_gateway_goes_on(
    file: Path, log: list[MutableMapping[str, Any]]
) -> None:
    def fault() -> Config:
        raise RuntimeError("a bug")

    async with simulated() as (pod,), running(configuration([pod])) as server:
        assert await server.reloader(ConfigFile(file, fault)).reload() == "failed"
        (entry,) = [entry for entry in log if entry["log_level"] == "error"]
        log.remove(entry)
        assert (
            server.gateway.metrics.registry.get_sample_value("p2p_gateway_config_reloads_total", {"result": "failed"})
            == 1
        )


# --- a process


async def test_a_process_takes_over_a_changed_file_at_sighup_and_opens_its_access_log_again(tmp_path: Path) -> None:
    file, access = tmp_path / "gateway.yaml", tmp_path / "access.log"
    async with simulated(2) as (one, two), client() as http:
        sections = {"access_log": {"path": str(access)}}
        file.write_text(written([one], sections))
        async with started("--config", str(file)) as (process, url):
            await ready(http, url)
            async with http.post(f"{url}/v1/completions", json=text_body("hi")) as answer:
                assert answer.headers["x-gateway-pod"] == one.url
            await until(access.exists)
            access.rename(tmp_path / "access.log.1")
            file.write_text(written([two], sections))
            process.send_signal(signal.SIGHUP)

            async def taken_over() -> bool:
                async with http.get(f"{url}/ready") as answer:
                    return bool((await answer.json())["pods"] == {name(two): "ready"})

            await until(taken_over)
            async with http.post(f"{url}/v1/completions", json=text_body("hi")) as answer:
                assert answer.headers["x-gateway-pod"] == two.url
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
    assert f'"pod":"{name(one)}"' in (tmp_path / "access.log.1").read_text()
    assert f'"pod":"{name(two)}"' in access.read_text()


async def test_a_process_without_a_file_says_that_there_is_nothing_to_reload() -> None:
    arguments = ("--host", "127.0.0.1", "--port", "0")
    async with simulated() as (pod,), client() as http, started("--pod", pod.url, *arguments) as (process, url):
        await ready(http, url)
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        async with asyncio.timeout(10):
            while b"nothing to reload" not in await process.stderr.readline():
                pass
        async with http.get(f"{url}/metrics") as answer:
            assert b'p2p_gateway_config_reloads_total{result="nothing_to_reload"} 1.0' in await answer.read()
        process.terminate()
        assert await ended(process) == 0
