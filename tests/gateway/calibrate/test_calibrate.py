"""`p2p-gateway calibrate` against simulated pods, whose costs are known."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway.calibrate import measure
from gateway.cli import main
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from scorers import Costs, Prefill
from tests.gateway.fleet import MODEL, ids, serving, simulated, spec, warm
from tests.gateway.meddler import Meddler, meddling

# Prefill 12 ms + 80 µs a token; a pull 40 ms + 8 µs a token over the link and 6.6 µs into the GPU tier: they cross at
# 612 tokens. Slow, so that what else the machine does is little beside it.
KNOWN = PodProfile(
    block_size=16,
    gpu_blocks=1024,
    cpu_blocks=4096,
    max_model_len=8192,
    prefill_us_per_token=40,
    pull_fixed_ms=20,
    pull_us_per_token=4,
    speed=0.5,
)
QUICK = msgspec.structs.replace(KNOWN, speed=20.0)
LENGTHS = ("--lengths", "256,1536")
ATTEMPTS = 3
SHORT = ("--lengths", "64,256", "--rounds", "1")
Pod = SimulatedPod | Meddler


def p2p(*pods: Pod) -> str:
    return ",".join(f"{pod.p2p_host}:{pod.p2p_port}" for pod in pods)


async def calibrate(one: Pod, other: Pod, *arguments: str) -> int:
    """The command, in a thread of its own: the pods live in this one."""
    pods = ("--pods", f"{one.url},{other.url}")
    addresses = () if "--p2p" in arguments or "--config" in arguments else ("--p2p", p2p(one, other))
    return await asyncio.to_thread(main, ["calibrate", *pods, *addresses, *arguments])


async def refused(capsys: pytest.CaptureFixture[str], one: Pod, other: Pod, *arguments: str, code: int = 1) -> str:
    """The one line with which it ended, without the progress before it."""
    assert await calibrate(one, other, *arguments) == code
    told = capsys.readouterr()
    assert told.out == ""
    line = told.err.splitlines()[-1]
    assert line.startswith("calibrate: " if code == 1 else "p2p-gateway: ")
    return line


@asynccontextmanager
async def pair(profile: PodProfile = QUICK, **options: Any) -> AsyncIterator[Sequence[SimulatedPod]]:
    async with simulated(2, profile=profile, **options) as pods:
        yield pods


def as_they_are(result: Any) -> bool:
    """Whether the costs are those of `KNOWN`, as far as a machine that does other things as well lets them be."""
    return all(
        300 <= (way["crossover"] or 0) <= 1200
        and way["measured_crossover"] == 1536
        and way["pull"]["fixed_s"] + 1536 * way["pull"]["token_s"] == pytest.approx(0.062, rel=0.4)
        and all(row["fitted_recompute_ms"] == pytest.approx(12 + 0.08 * row["tokens"], rel=0.3) for row in way["rows"])
        for way in result["pairs"]
    )


async def test_it_finds_what_simulated_pods_cost(tmp_path: Path) -> None:
    told = tmp_path / "result.json"
    async with pair(KNOWN) as (one, other):
        for _ in range(ATTEMPTS):
            assert await calibrate(one, other, *LENGTHS, "--rounds", "3", "--json", str(told)) == 0
            if as_they_are(result := json.loads(told.read_bytes())):
                break
    assert as_they_are(result), result
    assert 320 <= result["recommended_min_cached_token_delta"] <= 1280


async def test_what_it_finds_is_printed_written_drawn_and_read_by_a_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, told, drawn = tmp_path / "costs.json", tmp_path / "result.json", tmp_path / "plot.svg"
    async with pair() as (one, other):
        files = ("--json", str(told), "--save", str(saved), "--plot", str(drawn))
        assert await calibrate(one, other, *LENGTHS, "--rounds", "3", *files) == 0
        result = json.loads(told.read_bytes())
        pairs = [(each["source"], each["consumer"]) for each in result["pairs"]]
        assert pairs == [(one.url, other.url), (other.url, one.url)]
        for row in (row for way in result["pairs"] for row in way["rows"]):
            assert row["samples"] == 3
            assert row["moved_bytes"] >= 0.9 * row["tokens"] * QUICK.kv_bytes_per_token
        assert drawn.read_text().startswith("<?xml")
        assert saved.stat().st_mode & 0o777 == 0o644  # the gateway may be another user
        async with serving([one, other], costs={"path": str(saved)}) as front:
            costs = front.parts.pods.costs
            for way in result["pairs"]:
                ranks = (way["source"], 0), (way["consumer"], 0)
                assert costs.pull(*ranks)[:2] == pytest.approx(tuple(way["pull"].values()))
                assert costs.prefill(ranks[1])[:3] == pytest.approx(tuple(way["prefill"].values()))
            assert await front.metric("costs_file_total", action="load", result="ok") == 1
    out = capsys.readouterr()
    assert f"{other.url} pulls from {one.url}" in out.out
    assert f"round 3, 1,536 tokens, {other.url} pulls: computed " in out.err


async def test_what_other_pods_have_taught_stays_in_the_file(tmp_path: Path) -> None:
    file, other_pod = tmp_path / "costs.json", ("http://10.9.9.9:8000", 0)
    known = Costs()
    for now, tokens in enumerate((500.0, 1000.0, 2000.0)):
        known.computed(other_pod, Prefill(1.0, tokens, tokens**2, 0.0), 1e-3 * tokens, float(now))
    kept = {"format": "p2p-gateway costs", "version": 1, "saved": 0.0, "costs": known.state(3.0)}
    file.write_bytes(msgspec.json.encode(kept))
    file.chmod(0o640)
    async with pair() as (one, other):
        assert await calibrate(one, other, *SHORT, "--save", str(file)) == 0
    merged = Costs()
    merged.restore(json.loads(file.read_bytes())["costs"])
    assert merged.prefill(other_pod) == pytest.approx(known.prefill(other_pod))
    assert merged.prefill((one.url, 0)) != merged.usual_prefill()
    assert len(list(merged.pairs(0.0))) == 2
    assert file.stat().st_mode & 0o777 == 0o640


async def test_addresses_keys_and_pods_come_from_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POD_KEY", "a-key")
    file = tmp_path / "gateway.yaml"
    async with pair() as (one, other), meddling(other, key="a-key") as keyed:
        file.write_text(yaml.safe_dump({"pods": [spec(one), spec(keyed, api_key_env="POD_KEY")]}))
        assert await calibrate(one, keyed, *SHORT, "--config", str(file)) == 0
        assert "401" in await refused(capsys_cleared(capsys), one, keyed, *SHORT)
        stranger = SimulatedPod(profile=QUICK, port=1)
        line = await refused(capsys, one, stranger, "--config", str(file), code=3)
        assert line.endswith(f"http://127.0.0.1:1 is not a pod of {file}")


def capsys_cleared(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


async def test_a_pod_that_does_not_tell_what_it_reused_is_measured_by_its_counters(tmp_path: Path) -> None:
    told = tmp_path / "result.json"
    async with pair(prompt_tokens_details=False) as (one, other):
        assert await calibrate(one, other, *SHORT, "--json", str(told)) == 0
    rows = json.loads(told.read_bytes())["pairs"][0]["rows"]
    assert [row["pulled_tokens"] for row in rows] == [63, 255]


async def test_a_rank_of_several_is_measured_as_rank_0(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    async with pair(ranks=2) as (one, other):
        pods = [spec(pod, data_parallel_size=2) for pod in (one, other)]
        file.write_text(yaml.safe_dump({"pods": pods}))
        assert await calibrate(one, other, *SHORT, "--config", str(file)) == 0
        assert {request.rank for pod in (one, other) for request in pod.requests} == {0}


# -- what cannot be measured -------------------------------------------------------------------------------------------


async def test_a_pod_that_pulls_without_being_told_spoils_the_control(capsys: pytest.CaptureFixture[str]) -> None:
    """It moves bytes in every leg: what its times mean nobody knows."""
    async with pair() as (one, other):
        number = 0

        async def pulls_something(body: dict[str, Any]) -> None:
            nonlocal number
            if "kv_transfer_params" not in body and len(body["prompt"]) == 64:
                number += 1
                prompt = ids(256, number)
                await warm(one, prompt)
                await warm(other, prompt, kv_transfer_params=one.kv_source(f"behind the back {number}"))

        async with meddling(other, request=pulls_something) as meddler:
            line = await refused(capsys, one, meddler, *SHORT)
    assert f"{meddler.url}: the control leg moved 512 tokens, though no source was named" in line


async def test_a_pod_that_does_not_pull_is_told_of_with_the_usual_causes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSES_S", (0.01, 0.02))

    async def forgets(body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name != "kv_transfer_params"}

    async with pair() as (one, other), meddling(other, request=forgets) as meddler:
        line = await refused(capsys, one, meddler, *SHORT)
    assert f"{meddler.url} was told to pull from {one.url} at 127.0.0.1:{one.p2p_port}, and pulled no bytes" in line
    assert "PYTHONHASHSEED" in line


async def test_pods_that_hash_differently_move_no_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSES_S", (0.01, 0.02))
    async with SimulatedPod(profile=QUICK, seed="0") as one, SimulatedPod(profile=QUICK, seed="1") as other:
        assert "pulled no bytes" in await refused(capsys, one, other, *SHORT)


async def test_another_name_of_the_same_host_is_another_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSES_S", (0.01, 0.02))
    async with pair() as (one, other):
        addresses = f"localhost:{one.p2p_port},localhost:{other.p2p_port}"
        assert f"localhost:{other.p2p_port}, and pulled no bytes" in await refused(
            capsys, one, other, *SHORT, "--p2p", addresses
        )


async def test_a_port_where_nobody_listens_is_tried_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        assert await calibrate(one, other, *SHORT, "--p2p", "127.0.0.1:1,127.0.0.1:1") == 1
        told = [request for pod in (one, other) for request in pod.requests if b"kv_transfer_params" in request.body]
    assert len(told) == 1
    assert f"warning: nothing answers at 127.0.0.1:1, where {one.url} is to serve pulls" in capsys.readouterr().err


async def test_a_tier_that_is_too_small_for_the_prompts_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSES_S", (0.01, 0.02))

    async def has_little(body: dict[str, Any]) -> dict[str, Any]:
        return body if "kv_transfer_params" not in body else body | {"prompt": [*body["prompt"][:32], *range(500, 724)]}

    async with pair() as (one, other), meddling(other, request=has_little) as meddler:
        line = await refused(capsys, meddler, one, "--lengths", "128,256", "--rounds", "1")
    assert "pulled only 32 of 128 tokens" in line


async def test_addresses_that_are_nobodys_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump({"pods": [{"url": one.url}, {"url": other.url}]}))
        line = await refused(capsys, one, other, *SHORT, "--config", str(file))
    assert line.endswith("where it serves pulls is not known: name it with --p2p")


async def test_a_pod_that_is_not_there_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        await other.kill()
        line = await refused(capsys, one, other, *SHORT)
    assert f"{other.url}/v1/models: " in line


async def test_a_pod_that_stands_still_costs_no_more_than_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        other.stall()
        async with asyncio.timeout(20):
            line = await refused(capsys, one, other, *SHORT, "--timeout", "0.3")
        other.resume()
    assert f"{other.url}/v1/completions: no answer within the deadline" in line


async def test_pods_of_different_models_are_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    async with simulated(profile=QUICK) as (one,), simulated(profile=QUICK, model="another") as (other,):
        line = await refused(capsys, one, other, *SHORT)
        assert f"{one.url} serves {MODEL} and {other.url} another" in line
        line = await refused(capsys, one, other, *SHORT, "--model", "nobodys")
        assert f"{one.url} does not serve nobodys, but {MODEL}" in line


async def test_a_pod_without_a_model_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other), meddling(other, pages={"/v1/models": {"data": []}}) as empty:
        assert (await refused(capsys, one, empty, *SHORT)).endswith(f"{empty.url} serves no model")


async def test_lengths_that_the_pods_do_not_take_are_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        line = await refused(capsys, one, other, "--lengths", "128,8192", code=3)
    assert line == "p2p-gateway: --lengths: 8192 tokens and an answer do not fit into the pods' 8192"


async def test_pods_that_are_not_idle_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "result.json"
    busy = msgspec.structs.replace(QUICK, speed=1, decode_ms=5)
    async with pair(busy) as (one, other):
        answer = asyncio.create_task(warm(other, ids(48), max_tokens=4000))
        assert await calibrate(one, other, *SHORT, "--json", str(told)) == 0
        answer.cancel()
        await asyncio.wait([answer])
        warnings = json.loads(told.read_bytes())["warnings"]
    assert f"{other.url} is not idle, 1 requests run or wait" in capsys.readouterr().err
    assert any(warning.startswith("pods were not idle at ") for warning in warnings)


async def test_what_others_had_computed_meanwhile_is_counted(tmp_path: Path) -> None:
    told = tmp_path / "result.json"
    async with pair() as (one, other):

        async def also(body: dict[str, Any]) -> None:
            if len(body["prompt"]) == 256:
                await warm(other, ids(100, len(other.requests)))

        async with meddling(other, request=also) as meddler:
            assert await calibrate(one, meddler, *SHORT, "--json", str(told)) == 0
        count = sum(len(request.json["prompt"]) == 100 for request in other.requests)  # type: ignore[arg-type]
    warnings = json.loads(told.read_bytes())["warnings"]
    assert any(f"{meddler.url} also answered others: {100 * count:,} prompt tokens beside" in each for each in warnings)


async def test_time_that_is_up_ends_it_with_what_was_measured(tmp_path: Path) -> None:
    told = tmp_path / "result.json"
    async with pair() as (one, other):
        assert (
            await calibrate(
                one, other, "--lengths", "64,256", "--max-time", "3", "--rounds", "100", "--json", str(told)
            )
            == 0
        )
    result = json.loads(told.read_bytes())
    assert 1 <= result["rounds"] < 100
    assert any(warning.startswith("time was up in round ") for warning in result["warnings"])


async def test_time_that_is_up_too_early_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        line = await refused(capsys, one, other, *SHORT, "--max-time", "0.001")
    assert "time was up before each length was measured once" in line


# -- options -----------------------------------------------------------------------------------------------------------

PODS = ("--pods", "http://127.0.0.1:1,http://127.0.0.1:2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pods", "http://127.0.0.1:1"), "--pods: two URLs"),
        (("--pods", "http://127.0.0.1:1,http://127.0.0.1:1/"), "--pods: two URLs"),
        (("--pods", "http://127.0.0.1:1,h"), "$.pods[1]"),
        ((*PODS, "--p2p", "127.0.0.1:1"), "--p2p: two addresses"),
        ((*PODS, "--p2p", "127.0.0.1,b"), "--p2p: '127.0.0.1' is not host:port"),
        ((*PODS, "--lengths", "1k,2k"), "--lengths: '1k,2k' are no numbers"),
        ((*PODS, "--rounds", "0"), "--rounds: 1 … 100, not 0"),
        ((*PODS, "--timeout", "0"), "--timeout: 0 … 86400 seconds, not 0"),
        ((*PODS, "--max-time", "nan"), "--max-time: 0 … 86400 seconds, not nan"),
        ((*PODS, "--plot", "plot.gif"), "--plot: plot.gif is to end in one of .png, .svg"),
        ((*PODS, "--save", "/no/such/place/costs.json"), "--save: /no/such/place is not a directory"),
        ((*PODS, "--json", "/no/such/place/result.json"), "--json: /no/such/place is not a directory"),
        ((*PODS, "--config", "/no/such.yaml"), "/no/such.yaml: No such file"),
    ],
)
def test_options_that_do_not_fit_end_it_with_3_and_one_line(
    arguments: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *arguments]) == 3
    told = capsys.readouterr().err
    assert told.startswith("p2p-gateway: ")
    assert says in told
    assert told.count("\n") == 1


def test_a_file_that_holds_something_else_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.json"
    file.write_text('{"my": "notes"}')
    assert main(["calibrate", *PODS, "--save", str(file)]) == 3
    assert "is there, and no file of costs" in capsys.readouterr().err
    assert file.read_text() == '{"my": "notes"}'


def test_who_has_no_matplotlib_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["calibrate", *PODS, "--plot", "plot.png"]) == 3
    assert "pip install 'p2p-gateway[report]'" in capsys.readouterr().err


async def test_a_result_that_cannot_be_written_is_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    async with pair() as (one, other):
        assert await calibrate(one, other, *SHORT, "--plot", "/no/such/place/result.svg") == 1
    told = capsys.readouterr()
    assert "recommended" in told.out
    assert told.err.splitlines()[-1].endswith("No such file or directory: '/no/such/place/result.svg'")


async def test_a_result_takes_the_place_of_the_one_before_as_a_whole(tmp_path: Path) -> None:
    """Whoever has the old file open goes on reading the old one."""
    told = tmp_path / "result.json"
    told.write_text("before")
    async with pair() as (one, other):
        with told.open() as reader:
            assert await calibrate(one, other, *SHORT, "--json", str(told)) == 0
            assert reader.read() == "before"
    assert json.loads(told.read_bytes())["rounds"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


async def test_a_result_may_go_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with pair() as (one, other):
        reading = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
        assert await calibrate(one, other, *SHORT, "--json", str(pipe)) == 0
        assert json.loads(await reading)["rounds"] == 1


async def test_ctrl_c_ends_it_with_one_line(tmp_path: Path) -> None:
    saved = tmp_path / "costs.json"
    async with pair() as (one, other):
        other.stall()
        command = [sys.executable, "-m", "gateway.cli", "calibrate", "--pods", f"{one.url},{other.url}"]
        running = await asyncio.create_subprocess_exec(
            *command, "--p2p", p2p(one, other), "--save", str(saved), stderr=asyncio.subprocess.PIPE
        )
        assert running.stderr is not None
        said = await running.stderr.readline()  # it is at work
        running.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            lines = (said + await running.stderr.read()).decode().splitlines()
            assert await running.wait() == 130
        other.resume()
    assert lines[-1] == "calibrate: interrupted: nothing is written"
    assert all(line.startswith("calibrate: ") for line in lines)
    assert not saved.exists()


async def test_time_that_is_up_while_a_pull_is_tried_again_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_PAUSES_S", (0.01, *[0.2] * 100))

    async def forgets(body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name != "kv_transfer_params"}

    async with pair() as (one, other), meddling(other, request=forgets) as meddler:
        async with asyncio.timeout(15):
            line = await refused(capsys, one, meddler, *SHORT, "--max-time", "1")
    assert "time was up before each length was measured once" in line
