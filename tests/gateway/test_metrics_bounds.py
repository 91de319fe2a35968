"""How large the page gets: for a large fleet, and for clients who would like it to be larger."""

import asyncio
import json
import random
import string
from collections.abc import Iterator
from typing import Any

from gateway.metrics import MOST_MODELS, Metrics, Record
from gateway.pods import PodTable
from gateway.states import MOST_PAIRS
from index import RadixIndex
from scorers import Costs
from scorers.costs import Pull
from tests.bench.metrics_page import busy
from tests.gateway.fleet import MODEL, Front, connection, fleet, text_body

MOST_BYTES = 2_000_000
REQUESTS = 3_000
AT_ONCE = 16


def lines(metrics: Metrics) -> int:
    return "".join(metrics.registry.page(openmetrics=True)).count("\n")


def test_the_page_of_a_large_fleet_is_below_two_megabytes() -> None:
    """128 pods that each have answered for ten models, well and badly."""
    metrics = busy(pods=128, models=10)
    page = "".join(metrics.registry.page(openmetrics=True)).encode()
    assert page.count(b"p2p_gateway_requests_total{") == 128 * 10 * 2
    assert 500_000 < len(page) < MOST_BYTES


def test_models_that_come_and_go_do_not_add_up() -> None:
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())

    def ended(model: str) -> None:
        metrics.completed(Record(started=0.0, model=model, pod="pod:1", status=200, first_byte=1.0), 2.0)

    for number in range(MOST_MODELS):
        ended(f"adapter-{number}")
    full = lines(metrics)
    ended("one-more")
    more = lines(metrics)
    for number in range(5_000):
        ended(f"another-{number}")
    assert full < lines(metrics) == more
    series = metrics.requests.labels("other", "other", "pod:1", 200, "")
    assert series.value == 5_001


def test_pairs_are_told_one_by_one_as_long_as_they_are_few() -> None:
    metrics = busy(pods=20, models=1)
    pods = metrics.states.pods
    urls = [pod.url for pod in pods]
    told = [pulled(pods.costs, source, consumer) for source, consumer in pairs(urls)]
    page = metrics.registry.page(openmetrics=False)
    assert len(told) > MOST_PAIRS
    assert "".join(page).count("pair_pull_seconds{") == 0
    metrics.states.slow_pairs = lambda: told
    assert "".join(metrics.registry.page(openmetrics=False)).count("pair_pull_seconds{") == MOST_PAIRS


def pairs(urls: list[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for a in urls for b in urls if a != b)


def pulled(costs: Costs, source: str, consumer: str) -> tuple[tuple[str, int], tuple[str, int]]:
    costs.pulled((source, 0), (consumer, 0), Pull(1.0, 1000.0, 0.0, 0.0), 0.1, 1.0)
    return (source, 0), (consumer, 0)


async def test_hostile_clients_cannot_add_series() -> None:
    """Thousands of requests, each with a model, a key, a path, a session, a trace and an id that nobody saw before."""
    drawn = random.Random(1)
    async with fleet() as (front, _):
        await strikes(front, drawn, 200)
        before = await series(front)
        await strikes(front, drawn, REQUESTS)
        assert await front.metric("requests_total") == 200 + REQUESTS
        assert await front.metric("requests_total", model=MODEL, status="200") >= REQUESTS / 10
        assert await series(front) == before


async def series(front: Front) -> set[str]:
    """Every line of the page without its value; buckets' exemplars replace each other and are no series."""
    page = (await front.get("/metrics", accept="application/openmetrics-text")).body.decode()
    return {line.partition(" # ")[0].rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")}


async def strikes(front: Front, drawn: random.Random, count: int) -> None:
    async def worker(own: int) -> None:
        async with connection(front) as (reader, writer):
            for number in range(own):
                writer.write(hostile(drawn, number))
                await answered(reader)

    await asyncio.gather(*(worker(len(range(start, count, AT_ONCE))) for start in range(AT_ONCE)))


def hostile(drawn: random.Random, number: int) -> bytes:
    word = "".join(drawn.choices(string.ascii_letters + string.punctuation.replace("\\", ""), k=12))
    safe = "".join(drawn.choices(string.ascii_letters, k=12))
    known = number % 10 == 0  # some get through to a pod
    body = encoded(text_body([1], model=MODEL if known else word, user=word))
    path = ["/v1/completions", f"/v1/{safe}", f"/v1/responses/{safe}", "/v1/completions"][0 if known else number % 4]
    trace = f"{drawn.getrandbits(128):032x}"
    return (
        f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Authorization: Bearer {word}\r\nx-session-id: {word}\r\nx-request-id: {word}\r\nx-{safe}: {word}\r\n"
        f"x-gateway-priority: {number}\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\n\r\n"
    ).encode() + body


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


async def answered(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
    if b"content-length" in fields:
        await reader.readexactly(int(fields[b"content-length"]))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()


def test_what_was_forgotten_of_a_pod_begins_anew_and_others_go_on() -> None:
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())

    def ended(pod: str) -> None:
        record = Record(started=0.0, model="m", pod=pod, status=200, first_byte=1.0, reported_completion=3)
        metrics.completed(record, 2.0)

    def told(pod: str) -> list[str]:
        lines = "".join(metrics.registry.page(openmetrics=False)).splitlines()
        names = ("p2p_gateway_requests_total{", "p2p_gateway_completion_tokens_total{")
        return [line.rpartition(" ")[2] for line in lines if f'pod="{pod}"' in line and line.startswith(names)]

    for pod in ("pod:1", "pod:2", "pod:1", "pod:2"):
        ended(pod)
    metrics.forget("pod:1")
    assert (told("pod:1"), told("pod:2")) == ([], ["2.0", "6.0"])
    ended("pod:2")
    assert (told("pod:1"), told("pod:2")) == ([], ["3.0", "9.0"])
    ended("pod:1")
    assert (told("pod:1"), told("pod:2")) == (["1.0", "3.0"], ["3.0", "9.0"])


def test_outcomes_without_number_are_told_as_one() -> None:
    """A pod may answer with any status; what is kept to find series by is bounded as they are."""
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())
    metrics.requests.most = 10
    for status in range(200, 240):
        for _ in range(2):
            metrics.completed(Record(started=0.0, model="m", pod="pod:1", status=status), 1.0)
    series = [
        line for line in "".join(metrics.registry.page(openmetrics=False)).splitlines() if "_requests_total{" in line
    ]
    assert len(series) <= 21
    assert sum(float(line.rpartition(" ")[2]) for line in series) == 80
