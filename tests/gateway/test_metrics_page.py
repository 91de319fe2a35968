"""The page that is scraped: both formats, as the library's parsers and Prometheus's own read them."""

import asyncio
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from errno import EMFILE
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from gateway import process
from gateway.exposition import OPENMETRICS, TEXT, Registry, openmetrics_wanted, trace_of
from gateway.labelled import OTHER, Counter, Histogram, State, States, Summary
from gateway.metrics import Metrics, Record
from gateway.pods import PodTable
from index import RadixIndex
from tests.gateway.fleet import Front, client, fleet, ids, text_body, until

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"


async def scraped(front: Front, accept: str | None = None) -> tuple[str, str]:
    """Content type and page."""
    async with front.http.get(front.url + "/metrics", headers={} if accept is None else {"accept": accept}) as answer:
        assert answer.status == 200
        return answer.headers["content-type"], await answer.text()


def samples(families: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


# Which format


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("text/plain, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("*/*", False),
        ("", False),
        (";;,,=", False),
    ],
)
def test_openmetrics_is_for_who_prefers_it(accept: str, openmetrics: bool) -> None:
    assert openmetrics_wanted(accept) is openmetrics


@given(st.text())
def test_no_accept_header_is_a_fault(accept: str) -> None:
    assert openmetrics_wanted(accept) in (True, False)


async def test_both_formats_say_the_same() -> None:
    async with fleet() as (front, _):
        await front.complete(ids(64), stream=True, max_tokens=4)
        plain_type, plain = await scraped(front)
        type_, page = await scraped(front, PROMETHEUS)
    assert plain_type == TEXT
    assert type_ == OPENMETRICS
    assert page.endswith("\n# EOF\n")
    told = samples(text_string_to_metric_families(plain))
    again = samples(openmetrics_families(page))
    moving = re.compile("process_|.*(age_seconds|event_loop_lag|polls_total)")
    assert {key for key in told if not moving.match(key[0])} <= again.keys()
    counted = [key for key in told if re.match("p2p_gateway_(requests|ttft|request_duration|prompts)_", key[0])]
    assert [key for key in counted if told[key] != again[key]] == []
    assert len(counted) > 20


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
async def test_prometheus_finds_nothing_to_complain_about() -> None:
    async with fleet() as (front, _):
        await front.complete(ids(64), stream=True, max_tokens=4)
        _, page = await scraped(front)
    checked = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=30
    )
    ours = [line for line in checked.stderr.splitlines() if not line.startswith("process_")]
    # What has bytes or seconds per something, or a ratio, is named by what it is.
    assert [line for line in ours if "p2p_gateway" in line and "non-base units" not in line] == []


# Exemplars


async def test_a_sampled_trace_is_the_exemplar_of_its_buckets() -> None:
    async with fleet() as (front, _):
        await front.complete(ids(64), headers={"traceparent": SAMPLED})
        _, page = await scraped(front, PROMETHEUS)
        _, plain = await scraped(front)
    found = {
        family.name: sample.exemplar.labels
        for family in openmetrics_families(page)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert found == {
        "p2p_gateway_ttft_seconds": {"trace_id": TRACE},
        "p2p_gateway_request_duration_seconds": {"trace_id": TRACE},
    }
    assert TRACE not in plain


async def test_a_trace_comes_through_aiohttp_as_well() -> None:
    """Whatever is not plain, here a chunked body, is read by another parser."""

    async def pieces() -> Any:
        yield b'{"model": "demo-model", "prompt": [1, 2, 3], "max_tokens": 1}'

    async with fleet() as (front, _):
        sent = {"traceparent": SAMPLED, "content-type": "application/json"}
        async with front.http.post(front.url + "/v1/completions", data=pieces(), headers=sent) as answer:
            assert answer.status == 200
        _, page = await scraped(front, PROMETHEUS)
    assert page.count(f'{{trace_id="{TRACE}"}}') == 2


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        f"00-{TRACE}-00f067aa0ba902b7-00",  # nobody keeps it
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7-01\n",
        f'00-{TRACE[:-1]}"-00f067aa0ba902b7-01',
        f"00-{TRACE}-00f067aa0ba902b7-zz",
    ],
)
def test_what_is_no_sampled_trace_is_none(traceparent: str) -> None:
    assert trace_of(traceparent.encode()) == ""


def test_later_versions_of_traceparent_may_have_more() -> None:
    assert trace_of(SAMPLED.encode()) == trace_of(b"01" + SAMPLED[2:].encode() + b"-more") == TRACE


def test_a_bucket_keeps_the_latest_exemplar_only() -> None:
    registry = Registry()
    histogram = Histogram("took_seconds", "Time", ["kind"], buckets=(1.0, 2.0), registry=registry)
    for number in range(1000):
        histogram.labels("a").observe_traced(0.5 + number % 3, f"{number:032x}")
    page = "".join(registry.page(openmetrics=True))
    assert page.count("trace_id") == 3
    assert f'took_seconds_bucket{{kind="a",le="1.0"}} 334 # {{trace_id="{999:032x}"}} 0.5 ' in page
    assert 'took_seconds_bucket{kind="a",le="+Inf"} 1000 # ' in page


# The process


async def test_what_the_system_says_of_the_process_is_told() -> None:
    async with fleet() as (front, _):
        page = await scraped(front)
        opened = len([*Path("/proc/self/fd").iterdir()])
        pipes = [os.pipe() for _ in range(10)]
        more = await scraped(front)
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
    told, again = (
        {
            name: value
            for (name, labels), value in samples(text_string_to_metric_families(each[1])).items()
            if not labels
        }
        for each in (page, more)
    )
    assert told["process_open_fds"] == pytest.approx(opened, abs=5)
    assert again["process_open_fds"] == pytest.approx(opened + 20, abs=5)
    assert told["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert told["process_resident_memory_bytes"] > 10_000_000
    assert again["process_cpu_seconds_total"] > told["process_cpu_seconds_total"] > 0
    assert time.time() - 3600 < told["process_start_time_seconds"] < time.time()


async def test_where_linux_does_not_tell_how_many_files_are_open_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_OPEN_FILES", process._STATM)  # its size is always 0, as that of fd is before 6.2
    async with fleet() as (front, _):

        async def told() -> list[str]:
            return re.findall(r"^process_open_fds ([\d.]+)$", (await scraped(front))[1], re.MULTILINE)

        async def counted() -> bool:
            return bool(await told())

        await until(counted)
        opened = len([*Path("/proc/self/fd").iterdir()])
        assert float((await told())[0]) == pytest.approx(opened, abs=5)


def test_files_are_counted_once_in_a_while_and_at_the_limit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []

    class AtOnce:
        def __init__(self, *, target: Any, name: str, daemon: bool) -> None:
            assert daemon
            began.append(name)
            self.start = target

    def full(_: str) -> list[str]:
        raise OSError(EMFILE, os.strerror(EMFILE))

    monkeypatch.setattr(process, "Thread", AtOnce)
    counted = process._Counted()
    assert counted.ask() == counted.ask() == pytest.approx(len([*Path("/proc/self/fd").iterdir()]), abs=3)
    assert began == ["open files"]
    monkeypatch.setattr(process, "_COUNT_EVERY_S", 0.0)
    monkeypatch.setattr(os, "listdir", full)
    counted._next = 0.0
    assert counted.ask() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


# What is written


HOSTILE = ['a"b', "back\\slash", "new\nline", '"} 1\nevil{a="', "\u2028\u00e9", " ", ""]


def test_no_value_of_a_label_breaks_out_of_it() -> None:
    registry = Registry()
    counter = Counter("seen", "Things\nseen", ["kind", "other"], registry=registry)
    for value in HOSTILE:
        counter.labels(value, value[::-1]).inc()
    expected = {("seen_total", frozenset({("kind", value), ("other", value[::-1])})): 1.0 for value in HOSTILE}
    assert samples(text_string_to_metric_families("".join(registry.page(openmetrics=False)))) == expected
    assert samples(openmetrics_families("".join(registry.page(openmetrics=True)))) == expected


def test_a_summary_is_its_count_and_its_sum() -> None:
    registry = Registry()
    summary = Summary("took_seconds", "Time", registry=registry)
    summary.observe(1.5)
    summary.observe(2.0)
    page = "".join(registry.page(openmetrics=False))
    assert page == "# HELP took_seconds Time\n# TYPE took_seconds summary\ntook_seconds_count 2\ntook_seconds_sum 3.5\n"


def test_the_library_collects_the_same() -> None:
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())
    metrics.pull_seconds.labels("a").observe(1.0)
    ours = samples(text_string_to_metric_families("".join(metrics.registry.page(openmetrics=False))))
    theirs = {
        (sample.name, frozenset(sample.labels.items()))
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert ours.keys() == theirs


def test_states_begin_empty_at_each_scrape() -> None:
    registry, there = Registry(), ["a", "b"]
    state = State("there", "What there is", ["name"])
    States([state], lambda: [state.add(1, name) for name in there] and None, registry)
    assert "".join(registry.page(openmetrics=False)).count("there{") == 2
    there.remove("a")
    assert 'there{name="a"}' not in "".join(registry.page(openmetrics=False))


def test_of_too_many_series_the_rest_is_one() -> None:
    registry = Registry()
    counter = Counter("seen", "Things seen", ["a", "b"], registry=registry, most=10)
    for number in range(1000):
        counter.labels(number, "x").inc()
    found = samples(text_string_to_metric_families("".join(registry.page(openmetrics=False))))
    assert len(found) == 11
    assert found["seen_total", frozenset({("a", OTHER), ("b", OTHER)})] == 990.0
    assert sum(found.values()) == 1000.0


def test_a_forgotten_pod_makes_room() -> None:
    registry = Registry()
    counter = Counter("seen", "Things seen", ["pod", "source"], registry=registry, most=2)
    for pair in (("a", "b"), ("b", "a"), ("c", "d")):
        counter.labels(*pair).inc()
    counter.forget(("pod", "source"), "a")
    counter.labels("c", "d").inc()
    assert _lines(registry) == ['seen_total{pod="other",source="other"} 1.0', 'seen_total{pod="c",source="d"} 1.0']


def _lines(registry: Registry) -> Sequence[str]:
    return [line for line in "".join(registry.page(openmetrics=False)).splitlines() if not line.startswith("#")]


async def test_scrapes_at_once_each_get_a_whole_page() -> None:
    async with fleet(2) as (front, _), client() as http:
        await front.complete(ids(64))

        async def lines() -> int:
            async with http.get(front.url + "/metrics", headers={"accept": PROMETHEUS}) as answer:
                families = list(openmetrics_families(await answer.text()))
                return sum(sample.name == "p2p_gateway_pod_ready" for f in families for sample in f.samples)

        assert set(await asyncio.gather(*(lines() for _ in range(20)))) == {2}


async def test_the_reason_of_an_error_is_a_label() -> None:
    async with fleet() as (front, _):
        assert (await front.post("/v1/completions", text_body([1]) | {"model": "nobody's"})).status == 404
        assert (await front.post("/v1/completions", b"{")).status == 400
        await front.complete([1])
        assert await front.metric("requests_total", status="404", reason="model_not_found", pod="") == 1
        assert await front.metric("requests_total", status="400", reason="invalid_json") == 1
        assert await front.metric("requests_total", status="200", reason="") == 1


# What an objective is about


@pytest.mark.parametrize(
    ("record", "served"),
    [
        ({"status": 200}, "ok"),
        ({"status": 204}, "ok"),
        ({"status": 200, "broken": "pod_disconnected"}, "failed"),
        ({"status": 200, "engine_error": "empty"}, "failed"),
        ({"status": 502, "reason": "pod_timeout"}, "failed"),
        ({"status": 503, "reason": "no_pod_ready"}, "failed"),
        ({"status": 500}, "failed"),
        ({"status": 401, "reason": "unknown_key"}, "client"),
        ({"status": 429, "reason": "queue_full"}, "client"),
        ({"status": 499, "broken": "client_left"}, "client"),
    ],
)
def test_an_answer_is_ok_or_failed_or_is_the_clients_own(record: dict[str, Any], served: str) -> None:
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())
    metrics.completed(Record(started=0.0, pod="pod:1", **record), 1.0)
    assert {kind: metrics.answers.labels(kind).value for kind in ("ok", "failed", "client")} == {
        **dict.fromkeys(("ok", "failed", "client"), 0.0),
        served: 1.0,
    }


async def test_the_first_failure_of_all_is_seen_by_a_rate() -> None:
    """Its series is there before it, with 0; that of the same failure among the requests is not."""
    async with fleet() as (front, (pod,)):
        before = {kind: await front.metric("answers_total", **{"class": kind}) for kind in ("ok", "failed", "client")}
        assert "p2p_gateway_requests_total{" not in (await front.get("/metrics")).body.decode()
        pod.fail_next(500, 1)
        assert (await front.post("/v1/completions", text_body([1]))).status == 500
        assert await front.metric("answers_total", **{"class": "failed"}) == 1
        found = set(re.findall(r'answers_total\{class="(\w+)"\}', (await front.get("/metrics")).body.decode()))
    assert before == dict.fromkeys(found, 0.0)
