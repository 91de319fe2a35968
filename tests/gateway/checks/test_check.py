"""`p2p-gateway check` against simulated pods: one that is right, and every way to be wrong once."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml

from gateway.checks import look, pulls, stream
from gateway.checks.finding import Finding
from gateway.cli import main
from loadgen.pod import SimulatedPod
from tests.gateway.fleet import MODEL, SMALL, ids, serving, simulated, spec, warm
from tests.gateway.meddler import Meddler, meddling
from tests.gateway.scripted import never, scripted

Entry = Mapping[str, Any]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come on this machine within a second does not come."""
    monkeypatch.setattr(look, "_ANNOUNCED_S", 0.6)
    monkeypatch.setattr(pulls, "_OFFLOADED_S", 0.6)
    monkeypatch.setattr(pulls, "_PAUSES_S", (0.02, 0.05))
    monkeypatch.setattr(stream, "_HANDSHAKE_S", 0.6)
    monkeypatch.setattr(stream, "_REPLAY_ANSWER_S", 0.6)


class Checked:
    """What came of one run."""

    def __init__(self, code: int, findings: Sequence[Finding]) -> None:
        self.code = code
        self.findings = findings

    def of(self, check: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.check == check]

    def only(self, check: str) -> Finding:
        """The one finding of this check that is not good."""
        (found,) = [finding for finding in self.of(check) if finding.level not in ("ok", "note")]
        return found

    @property
    def wrong(self) -> set[str]:
        return {finding.check for finding in self.findings if finding.level in ("warn", "FAIL")}


class Checker:
    """Runs the command, in a thread of its own: the pods live in this one."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = directory / "gateway.yaml"
        self._capsys = capsys

    async def text(self, *pods: Any, **sections: Any) -> tuple[int, str]:
        self._file.write_text(yaml.safe_dump({"pods": [_entry(pod) for pod in pods], **sections}))
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, ["check", "--config", str(self._file), *self._options])
        return code, self._capsys.readouterr().out

    async def __call__(self, *pods: Any, patience: float = 20.0, **sections: Any) -> Checked:
        self._options = ["--json", "--timeout", str(patience)]
        code, out = await self.text(*pods, **sections)
        return Checked(code, msgspec.json.decode(out, type=list[Finding]))

    _options: Sequence[str] = ()


def _entry(pod: Any) -> Entry:
    return pod if isinstance(pod, Mapping) else spec(pod)


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checker:
    return Checker(tmp_path, capsys)


@asynccontextmanager
async def unlike(**different: Any) -> AsyncIterator[tuple[SimulatedPod, SimulatedPod]]:
    """Two pods of which the second differs."""
    options = {"profile": SMALL}
    async with SimulatedPod(**options) as one, SimulatedPod(**options | different) as other:
        yield one, other


async def test_pods_as_they_should_be_are_found_to_be_so(check: Checker) -> None:
    async with simulated(2) as (one, other):
        checked = await check(one, other)
    assert checked.wrong == set()
    assert checked.code == 0
    for pod in (one, other):
        mine = [finding.check for finding in checked.findings if finding.pod == pod.url]
        assert mine[:9] == [
            "model",
            "events",
            "replay",
            "cpu-tier",
            "generated",
            "self-describing",
            "cpu-size",
            "p2p-port",
            "details",
        ]
    assert [(finding.pod, finding.peer) for finding in checked.of("pull")] == [
        (one.url, other.url),
        (other.url, one.url),
    ]
    assert [finding.level for finding in checked.of("alike")] == ["ok"]


async def test_it_prints_a_line_for_each_finding_and_one_for_all(check: Checker) -> None:
    async with simulated(2) as (one, other):
        code, out = await check.text(one, other)
    assert code == 0
    *lines, last = out.splitlines()
    assert lines[0] == f"ok   {one.url}: serves {MODEL}, up to 8,192 tokens; vLLM 0.32.0"
    assert all(line.startswith(("ok  ", "note ")) for line in lines)
    assert any(line.startswith(f"ok   {one.url} ← {other.url}: pulled 128 tokens, ") for line in lines)
    assert last == "pulls can work"


async def test_pods_can_be_named_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    async with simulated(1) as (pod,):
        assert await asyncio.to_thread(main, ["check", "--pod", pod.url]) == 1
    out = capsys.readouterr().out
    assert "nothing serves pulls at 127.0.0.1:5710" in out or "somebody listens for pulls at 127.0.0.1:5710" in out
    assert f"warn {pod.url}: no other pod serves {MODEL}: there is nobody to pull from; fix: " in out


async def test_every_rank_is_looked_at(check: Checker) -> None:
    async with simulated(2, ranks=2) as (one, other):
        checked = await check(*(spec(pod, data_parallel_size=2) for pod in (one, other)))
    assert (checked.wrong, checked.code) == (set(), 0)
    assert [finding.pod for finding in checked.of("cpu-tier")] == [
        f"{pod.url} rank {rank}" for pod in (one, other) for rank in (0, 1)
    ]
    assert len(checked.of("pull")) == 4


async def test_pods_under_load_are_checked_all_the_same(check: Checker) -> None:
    slow = msgspec.structs.replace(SMALL, speed=2, decode_ms=1)
    async with simulated(2, profile=slow) as pods:
        loads = [asyncio.create_task(warm(pod, ids(40, salt), max_tokens=3000)) for pod in pods for salt in range(8)]
        checked = await check(*pods)
        assert not any(load.done() for load in loads)
        for load in loads:
            load.cancel()
        await asyncio.wait(loads)
    assert (checked.wrong, checked.code) == (set(), 0)
    small = [len(request.json["prompt"]) for pod in pods for request in pod.requests]  # type: ignore[arg-type]
    assert max(small) <= 8 * SMALL.block_size + 1


async def test_events_that_are_lost_once_are_no_finding(check: Checker) -> None:
    async with simulated(2) as (one, other):
        one.drop_events(2)  # the prompt's announcements on the GPU and in the CPU tier
        checked = await check(one, other)
        prompts = [request.json["prompt"] for request in one.requests]
    assert checked.wrong == set()
    assert len([prompt for prompt in prompts if len(prompt) == 2 * SMALL.block_size]) == 4  # type: ignore[arg-type]


# -- one thing wrong ---------------------------------------------------------------------------------------------------


async def test_a_pod_that_is_not_there(check: Checker) -> None:
    async with simulated(2) as (one, other):
        await other.kill()
        checked = await check(one, other)
    assert checked.code == 1
    found = checked.only("reachable")
    assert (found.level, found.pod) == ("FAIL", other.url)
    assert "start the pod" in found.fix
    assert checked.only("peers").pod == one.url


async def test_a_pod_that_asks_for_a_key(check: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_KEY", "a-key")
    async with simulated(2) as (one, other), meddling(other, key="a-key") as keyed:
        found = (await check(one, keyed)).only("reachable")
        assert found.message.endswith("answered 401")
        assert "api_key_file" in found.fix
        assert (await check(one, spec(keyed, api_key_env="POD_KEY"))).wrong == set()


async def test_pods_over_tls(check: Checker, tmp_path: Path) -> None:
    authority, served = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with simulated(2) as (one, other), meddling(other, tls=served) as safe:
        entry = spec(safe, kv_events=other.events[0], kv_replay=other.replays[0])
        assert (await check(one, entry, upstream_tls={"ca": str(tmp_path / "ca.pem")})).wrong == set()
        assert "upstream_tls.ca" in (await check(one, entry)).only("reachable").fix


async def test_a_pod_without_a_model(check: Checker) -> None:
    async with simulated() as (pod,), meddling(pod, pages={"/v1/models": {"data": []}}) as empty:
        checked = await check(empty)
    assert (checked.code, checked.only("model").message) == (1, "serves no model")


async def test_a_pod_without_events(check: Checker) -> None:
    async with unlike(event_sources=False) as (one, other):
        checked = await check(one, other)
    found = checked.only("events")
    assert (checked.code, found.level, found.pod) == (1, "FAIL", other.url)
    assert "--kv-events-config" in found.fix
    assert [finding.level for finding in checked.of("pull")] == ["ok", "ok"]


async def test_events_where_nobody_is(check: Checker) -> None:
    async with simulated(2) as (one, other):
        checked = await check(one, spec(other, kv_events="tcp://127.0.0.1:1"))
    found = checked.only("events")
    assert (found.level, found.pod) == ("FAIL", other.url)
    assert "no event stream at tcp://127.0.0.1:1: " in found.message


async def test_events_where_somebody_else_is(check: Checker) -> None:
    """A port that takes connections and is no publisher; and the publisher of another pod."""
    async with simulated(2) as (one, other):
        http = other.url.removeprefix("http://")
        found = (await check(one, spec(other, kv_events=f"tcp://{http}"))).only("events")
        assert found.message.endswith("what listens there does not speak ZMQ")
        found = (await check(one, spec(other, kv_events=one.events[0]))).only("events")
        assert "the blocks of a fresh prompt were not announced" in found.message


async def test_a_pod_that_announces_nothing_that_can_be_used(check: Checker) -> None:
    async with simulated(2) as (one, other):

        async def garbage(_: dict[str, Any]) -> None:
            other.publish_payload(msgspec.msgpack.encode([0.0, [{"type": "Unheard"}], 0]))

        async with meddling(other, answer=garbage) as meddler:
            checked = await check(one, meddler)
    found = checked.only("events")
    assert (found.level, checked.code) == ("warn", 0)
    assert "events could not be used" in found.message


async def test_a_pod_without_replay(check: Checker) -> None:
    async with unlike(replay=False) as (one, other):
        checked = await check(one, other)
    found = checked.only("replay")
    assert (checked.code, found.level, found.pod) == (0, "warn", other.url)
    assert "replay_endpoint" in found.fix
    assert checked.wrong == {"replay"}


async def test_a_replay_port_where_nobody_answers(check: Checker) -> None:
    async with simulated(2) as (one, other):
        deaf = spec(other, kv_events=other.events[0], kv_replay="tcp://127.0.0.1:1")
        found = (await check(one, deaf)).only("replay")
    assert found.message == "the replay endpoint does not answer"


async def test_a_pod_without_a_cpu_tier(check: Checker) -> None:
    async with unlike(profile=msgspec.structs.replace(SMALL, cpu_blocks=0)) as (one, other):
        checked = await check(one, other)
    assert checked.code == 1
    assert checked.only("cpu-tier").pod == other.url
    assert (checked.only("pull").pod, checked.only("pull").peer) == (one.url, other.url)


async def test_a_pod_that_does_not_offload_what_it_generates(check: Checker) -> None:
    async with unlike(offload_prompt_only=True) as (one, other):
        checked = await check(one, other)
    assert (checked.code, checked.wrong) == (0, {"generated"})
    assert "offload_prompt_only" in checked.only("generated").fix


async def test_a_pod_whose_events_do_not_say_what_the_cpu_tier_holds(check: Checker) -> None:
    async with unlike(self_describing=False) as (one, other):
        checked = await check(one, other)
    assert (checked.code, checked.wrong) == (0, {"self-describing"})
    assert "self_describing_kv_events" in checked.only("self-describing").fix


@pytest.mark.parametrize(("blocks", "level"), [(64, "warn"), (1024, "ok")], ids=["smaller", "larger"])
async def test_how_large_the_cpu_tier_is_shows_when_it_has_been_full(blocks: int, level: str, check: Checker) -> None:
    profile = msgspec.structs.replace(SMALL, cpu_blocks=blocks, gpu_blocks=520, max_model_len=8192)
    async with simulated(2, profile=profile) as (one, other):
        for salt in range(15):
            await warm(one, ids(1024 if blocks > 64 else 256, salt))
        checked = await check(one, other)
    assert [finding.level for finding in checked.of("cpu-size")] == [level, "note"]
    assert checked.code == 0


async def test_a_pod_that_does_not_say_how_large_its_gpu_tier_is(check: Checker) -> None:
    async with simulated(2) as (one, other), meddling(other, pages={"/metrics": {}}) as silent:
        checked = await check(one, silent)
    (_, found) = checked.of("cpu-size")
    assert (found.level, found.message) == ("note", "whether its CPU tier is larger than its GPU's cannot be told")


async def test_a_p2p_port_where_nobody_listens_is_not_pulled_from(check: Checker) -> None:
    async with simulated(2) as (one, other):
        checked = await check(one, spec(other) | {"p2p": "127.0.0.1:1"})
    found = checked.only("p2p-port")
    assert (checked.code, found.pod) == (1, other.url)
    assert found.message == "nothing serves pulls at 127.0.0.1:1: connection refused"
    assert (checked.only("pull").pod, checked.only("pull").peer) == (one.url, other.url)
    assert checked.only("pull").message == f"no test pull: nothing serves pulls of {other.url}"
    assert not any(b"kv_transfer_params" in request.body for request in one.requests)


async def test_a_p2p_port_that_this_host_does_not_reach_is_pulled_from_all_the_same(
    check: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(_: object) -> str:
        return "no connection within the deadline"

    monkeypatch.setattr(look, "connection_refused", unreachable)
    async with simulated(2) as (one, other):
        checked = await check(one, other)
    assert (checked.code, checked.wrong) == (0, set())
    assert [finding.level for finding in checked.of("p2p-port")] == ["note", "note"]
    assert [finding.level for finding in checked.of("pull")] == ["ok", "ok"]


async def test_prompts_are_as_long_as_the_chunks_that_a_pod_tells_of(check: Checker) -> None:
    async with simulated(2) as (one, other):
        page = {"/kv/identity": {"offload_block_size": 256}}
        async with meddling(one, pages=page) as first, meddling(other, pages=page) as second:
            checked = await check(first, second)
        prompts = {len(request.json["prompt"]) for request in one.requests}  # type: ignore[arg-type]
    assert (checked.code, checked.wrong) == (0, set())
    assert prompts >= {512, 513}


async def test_a_pod_that_offloads_nothing_of_a_short_prompt_gets_a_longer_one(check: Checker) -> None:
    async with unlike(profile=msgspec.structs.replace(SMALL, cpu_blocks=0)) as (one, other):
        await check(one, other)
        prompts = [{len(request.json["prompt"]) for request in pod.requests} for pod in (one, other)]  # type: ignore[arg-type]
    assert 512 not in prompts[0]
    assert 512 in prompts[1]


async def test_pods_of_one_host_that_share_a_default_address(check: Checker) -> None:
    async with simulated(2) as (one, other):
        checked = await check({"url": one.url}, {"url": other.url})
    assert checked.code == 1
    assert [finding.fix for finding in checked.of("p2p-port")] == [
        "name it as p2p: HOST:PORT, as the pod was told to"
    ] * 2


async def test_a_p2p_address_that_is_right_but_spelt_otherwise(check: Checker) -> None:
    async with simulated(2) as (one, other):
        checked = await check(one, spec(other) | {"p2p": f"localhost:{other.p2p_port}"})
    assert (checked.code, checked.wrong) == (1, {"pull"})
    found = checked.only("pull")
    assert found.message.startswith(f"told to pull from localhost:{other.p2p_port}, it pulled nothing, in ")
    assert "very host and port" in found.fix


async def test_a_pod_that_does_not_tell_what_it_reused(check: Checker) -> None:
    async with unlike(prompt_tokens_details=False) as (one, other):
        checked = await check(one, other)
    assert (checked.code, checked.wrong) == (0, {"details"})
    assert "--enable-prompt-tokens-details" in checked.only("details").fix


async def test_a_pod_that_fails_small_prompts(check: Checker) -> None:
    async with simulated(2) as (one, other):
        other.fail_next(500, 100)
        checked = await check(one, other)
    assert checked.code == 1
    assert checked.only("answers").message.endswith("/v1/completions answered 500")
    assert {finding.message for finding in checked.of("pull")} == {f"no test pull: {other.url} does not answer"}


async def test_a_pod_that_stands_still_costs_no_more_than_the_deadline(check: Checker) -> None:
    async with simulated(2) as (one, other):
        other.stall()
        async with asyncio.timeout(20):
            checked = await check(one, other, patience=0.5)
        other.resume()
    assert checked.only("answers").message.endswith("no answer within the deadline")


async def test_a_pod_that_takes_connections_and_says_nothing(check: Checker) -> None:
    async with simulated() as (one,), scripted(health=never) as other:
        async with asyncio.timeout(20):
            checked = await check(one, other, poll={"timeout": 0.3})
    assert checked.only("reachable").message.endswith("/health: no answer within the deadline")


# -- what pods have to have in common ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("different", "name", "fix"),
    [
        ({"seed": "1"}, "hash", "PYTHONHASHSEED"),
        ({"hash_algo": "sha256_cbor"}, "hash", "--prefix-caching-hash-algo"),
        ({"profile": msgspec.structs.replace(SMALL, block_size=32)}, "block-size", "--block-size"),
        ({"root": "/elsewhere/demo-model"}, "model", "same name or path"),
    ],
    ids=["seed", "algorithm", "block size", "path"],
)
async def test_pods_that_differ_cannot_pull_from_each_other(
    different: dict[str, Any], name: str, fix: str, check: Checker
) -> None:
    async with unlike(**different) as (one, other):
        checked = await check(one, other)
    found = checked.only(name)
    assert (checked.code, found.level, {found.pod, found.peer}) == (1, "FAIL", {one.url, other.url})
    assert fix in found.fix
    assert checked.wrong == {name, "pull"}
    assert [finding.level for finding in checked.of("pull")] == ["FAIL", "FAIL"]


async def test_pods_of_different_versions(check: Checker) -> None:
    async with simulated(2) as (one, other), meddling(other, pages={"/version": {"version": "0.33.0"}}) as newer:
        checked = await check(one, newer)
    assert (checked.code, checked.wrong) == (1, {"version"})
    assert checked.only("version").message == "vLLM 0.33.0 here, 0.32.0 there: they refuse each other"


async def test_a_pod_that_does_not_tell_its_version(check: Checker) -> None:
    async with simulated() as (pod,), meddling(pod, pages={"/version": {}}, status=404) as silent:
        checked = await check(silent)
    assert "an engine that does not tell its version" in checked.of("model")[0].message


async def test_every_key_of_an_identity_has_to_be_the_same(check: Checker) -> None:
    same = {"model": "/models/demo-model", "block_size": 16, "hash_seed": "0"}
    async with AsyncExitStack() as stack:
        pods = await stack.enter_async_context(simulated(3))
        identities: Sequence[dict[str, Any]] = [same, same, same | {"block_size": 32, "dtype": "bfloat16"}]
        told: list[Meddler] = [
            await stack.enter_async_context(meddling(pod, pages={"/kv/identity": identity}))
            for pod, identity in zip(pods, identities, strict=True)
        ]
        checked = await check(*told[:2])
        assert checked.wrong == set()
        assert checked.of("alike")[0].message.endswith("3 more of /kv/identity")
        checked = await check(*told)
        assert checked.code == 1
        assert [(finding.pod, finding.peer, finding.message) for finding in checked.of("identity")] == [
            (told[2].url, told[0].url, "block_size is 32 here, 16 there: they refuse each other"),
            (told[2].url, told[0].url, f"only {told[2].url} tells its dtype"),
        ]
        assert (await check(told[0], pods[1])).wrong == set()  # who tells nothing has not said anything else


@pytest.mark.parametrize("status", [404, 500])
async def test_an_identity_that_fails_is_told_of_and_one_that_is_not_there_is_not(status: int, check: Checker) -> None:
    async with simulated(2) as (one, other), meddling(other, pages={"/kv/identity": {}}, status=status) as meddler:
        checked = await check(one, meddler)
    assert (checked.code, checked.wrong) == (0, set() if status == 404 else {"identity"})


async def test_pods_of_different_models_are_different_fleets(check: Checker) -> None:
    async with simulated(2) as (one, two), simulated(model="another") as (third,):
        checked = await check(one, third, two)
    assert (checked.code, checked.wrong) == (0, {"peers"})
    assert checked.only("peers").pod == third.url
    assert {finding.peer for finding in checked.of("pull")} == {one.url, two.url}


async def test_pulls_that_are_switched_off_are_told_of_first(check: Checker) -> None:
    async with simulated(2) as pods:
        checked = await check(*pods, p2p={"enabled": False})
    assert (checked.code, checked.wrong) == (0, {"enabled"})
    assert checked.findings[0].check == "enabled"


async def test_what_is_found_to_work_works_in_a_gateway_too(check: Checker) -> None:
    async with simulated(2) as (one, other):
        assert (await check(one, other)).code == 0
        async with serving([one, other]) as front:
            await front.settled(one, other)
            assert (await front.complete(ids(64))).status == 200


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no pods"),
        (("--config", "/no/such.yaml"), "/no/such.yaml: No such file"),
        (("--config", "x.yaml", "--pod", "http://h:1"), "--config and --pod exclude each other"),
        (("--pod", "http://h:1", "--timeout", "0"), "--timeout: 0 … 86400 seconds, not 0"),
    ],
)
def test_options_that_do_not_fit_end_it_with_3_and_one_line(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 3
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert says in told.err
