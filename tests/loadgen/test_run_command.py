"""`p2p-loadgen run` and `compare` as their users start them."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import main
from loadgen.pod import SimulatedPod
from loadgen.report.record import read

SMALL = ("--set", "input_tokens=20", "--set", "output_tokens=5")


@contextlib.asynccontextmanager
async def started(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-W", "error", "-m", "loadgen", "run", *options)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ran(*options: str) -> tuple[int, str, str]:
    async with started(*options) as process, asyncio.timeout(60):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


async def test_a_run_leaves_figures_requests_and_a_table(tmp_path: Path) -> None:
    results = tmp_path / "out.json"
    async with SimulatedPod(speed=1000) as pod:
        options = ("--rate", "200", "--requests", "20", "--warm-up", "5", "--slo", "ttft:5000", "--seeds", "2")
        code, out, errors = await ran(pod.url, *SMALL, *options, "--label", "one", "--json", str(results))
    assert (code, errors) == (0, "")
    assert "TTFT" in out
    assert "15 completed, 0 failed" in out
    found = rows(results)
    assert [(row["scenario"], row["arm"], row["seed"], row["completed"]) for row in found] == [
        ("random", "one", 0, 15),
        ("random", "one", 1, 15),
    ]
    assert found[0]["model"] == "demo-model"
    assert found[0]["request_goodput"] == found[0]["request_throughput"] > 0
    assert found[0]["interrupted"] is False
    requests = list(read(tmp_path / found[0]["requests_file"]))
    assert len(requests) == 40
    assert sum(record.warm_up for record in requests) == 10


async def test_an_interrupt_leaves_a_valid_result(tmp_path: Path) -> None:
    results = tmp_path / "out.json"
    async with SimulatedPod(speed=1000) as pod:
        options = (pod.url, *SMALL, "--concurrency", "3", "--json", str(results), "--quiet")
        async with started(*options) as process, asyncio.timeout(60):
            while len(pod.requests) <= 20:  # noqa: ASYNC110 (a pod tells nobody; a busy machine starts a process late)
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, errors = await process.communicate()
    assert (process.returncode, errors) == (130, b"")
    (row,) = rows(results)
    assert row["interrupted"] is True
    assert row["completed"] > 0
    assert row["failed"] == 0
    assert len(list(read(tmp_path / "out.jsonl"))) == row["num_prompts"]
    assert b"completed" in out


async def test_a_chat_with_an_api_key_and_headers() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = ("--dataset", "chat", "--set", "conversations=2", "--set", 'turns={"type":"uniform","low":2,"high":2}')
        shape = ("--api", "chat", "--api-key", "k", "--header", "X-A: b", "--extra-body", '{"temperature":0}')
        closed = ("--concurrency", "2", "--unit", "sessions", "--set", "think=0", "--set", "output_tokens=4")
        code, _, errors = await ran(pod.url + "/v1", *load, *shape, *closed, "--model", "demo-model", "--quiet")
    assert (code, errors) == (0, "")
    received = pod.requests[0]
    assert received.path == "/v1/chat/completions"
    assert (received.headers["authorization"], received.headers["x-a"]) == ("Bearer k", "b")
    assert received.json["temperature"] == 0
    assert len(pod.requests) == 4


async def test_a_trace_is_replayed_faster(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"timestamp": 1000 * i, "input_length": 40, "output_length": 3, "hash_ids": [i]}) + "\n"
            for i in range(4)
        )
    )
    results = tmp_path / "out.json"
    async with SimulatedPod(speed=1000) as pod:
        code, *_ = await ran(pod.url, "--trace", str(trace), "--speed-up", "20", "--json", str(results), "--quiet")
    assert code == 0
    (row,) = rows(results)
    assert (row["scenario"], row["completed"], row["total_input_tokens"]) == ("trace", 4, 160)
    assert [record.scheduled_s for record in read(tmp_path / "out.jsonl")] == pytest.approx([0, 0.05, 0.1, 0.15])


async def test_a_trace_that_breaks_off_costs_one_line_and_what_was_sent_is_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    good = {"timestamp": 0, "input_length": 40, "output_length": 3, "hash_ids": [1]}
    trace.write_text(f"{json.dumps(good)}\n" * 20 + "broken\n")
    async with SimulatedPod(speed=1000) as pod:
        options = ("--trace", str(trace), "--jsonl", str(tmp_path / "out.jsonl"), "--max-concurrency", "1")
        code, _, errors = await ran(pod.url, *options, "--quiet")
    assert code == 3
    assert errors.startswith("p2p-loadgen run: ")
    assert ("21" in errors, errors.count("\n")) == (True, 1)


async def test_exit_code_1_says_that_nothing_completed() -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.fail_next(500, 3)
        code, out, _ = await ran(pod.url, *SMALL, "--concurrency", "1", "--requests", "3", "--quiet")
    assert code == 1
    assert "3 status_500" in out


async def test_exit_code_3_says_that_nothing_could_be_sent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, _, errors = await ran(f"http://127.0.0.1:{taken.getsockname()[1]}", "--rate", "1")
    assert code == 3
    assert errors.startswith("p2p-loadgen run: 127.0.0.1")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["ftp://x"], "is no URL"),
        (["http://x", "--arrival", "closed"], "--concurrency"),
        (["http://x", "--arrival", "gamma"], "--rate"),
        (["http://x", "--slo", "ttft=5"], "--slo"),
        (["http://x", "--slo", "tftt:5"], "no latency"),
        (["http://x", "--vocabulary", "5:5"], "no ids"),
        (["http://x", "--extra-body", "[1]"], "JSON object"),
        (["http://x", "--warm-up", "soon"], "soon"),
        (["http://x", "--header", "nothing"], "--header"),
    ],
)
def test_wrong_options_cost_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *options]) == 3
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset", "random", "--set", "inputs=5"], "inputs"),
        (["--trace", "/nowhere.jsonl"], "nowhere"),
    ],
)
async def test_a_load_that_cannot_be_read_costs_one_line(options: list[str], said: str) -> None:
    async with SimulatedPod(speed=1000) as pod:
        code, _, errors = await ran(pod.url, "--rate", "5", *options, "--quiet")
    assert code == 3
    assert said in errors
    assert errors.count("\n") == 1


def test_results_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arm, factor in (("old", 1.0), ("new", 0.5)):
        made = [{"scenario": "s", "arm": "", "seed": i, "mean_ttft_ms": factor * (100 + i)} for i in range(3)]
        (tmp_path / f"{arm}.json").write_text(json.dumps(made))
    ratios, files = tmp_path / "ratios.json", [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert main(["compare", *files, "--json", str(ratios)]) == 0
    out = capsys.readouterr().out
    assert "0.500" in out
    assert "0.500 … 0.500 *" in out
    (ratio,) = rows(ratios)
    assert (ratio["baseline"], ratio["arm"], ratio["ratio"]) == ("old", "new", 0.5)


def test_a_single_arm_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text("[]")
    assert main(["compare", str(file)]) == 3
    file.write_text('[{"completed": 1}]')
    assert main(["compare", str(file)]) == 3
    assert main(["compare", str(tmp_path / "missing.json")]) == 3
    assert capsys.readouterr().err.count("p2p-loadgen compare: ") == 3


def test_the_key_of_the_environment_is_used(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import loadgen.run_options as o, argparse; p = argparse.ArgumentParser(); "]
    command[-1] += "o.add_to(p); print(o.parse(p.parse_args(['http://x'])).shape.headers)"
    env = os.environ | {"OPENAI_API_KEY": "secret"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=30).stdout
    assert "Bearer secret" in said
