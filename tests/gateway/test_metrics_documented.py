"""docs/metrics.md has every metric, with its type and its labels, and none besides; and the page has no others."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.decision import SourceReason
from gateway.metrics import Metrics
from gateway.pods import PodTable
from index import RadixIndex
from tests.gateway.fleet import fleet, ids

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "summary": ("_sum", "_count")} | {
    "histogram": ("_bucket", "_sum", "_count")
}


class Documented(NamedTuple):
    kind: str
    labels: list[str]
    meaning: str


def documented() -> dict[str, Documented]:
    """The tables' rows, by the name in the first cell."""
    rows = re.findall(
        r"^\| `((?:p2p_gateway|process)_\w+)` \|(.*)\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    names = [name for name, _ in rows]
    assert sorted(set(names)) == sorted(names), "a metric has two rows"
    found = {}
    for name, rest in rows:
        kind, labels, meaning, _ = (cell.strip() for cell in rest.split("|"))
        found[name] = Documented(kind, re.findall(r"`(\w+)`", labels), meaning)
    return found


def registered() -> Iterator[tuple[str, str, list[str]]]:
    """Name as documented, type and labels of every metric of a gateway, whether it has samples or not."""
    for family in Metrics(PodTable([], max_load_age=10.0), RadixIndex()).registry.collect():
        labels = list(getattr(family, "_labelnames", ()))
        yield family.name + ("_total" if family.type == "counter" else ""), family.type, labels


def test_every_metric_is_documented_and_nothing_else() -> None:
    """Whoever adds a metric adds its row to docs/metrics.md: name with its suffix, type, labels in order."""
    exist = {name: (kind, labels) for name, kind, labels in registered()}
    told = {name: (row.kind, row.labels) for name, row in documented().items()}
    assert sorted(exist.keys() - told.keys()) == [], "not in docs/metrics.md"
    assert sorted(told.keys() - exist.keys()) == [], "in docs/metrics.md, but not there"
    assert told == exist


def test_every_metric_says_something() -> None:
    assert [name for name, row in documented().items() if not row.meaning.endswith(".")] == []


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_what_a_busy_gateway_shows_is_what_is_documented() -> None:
    rows = documented()
    of_sample = {
        name.removesuffix("_total") + suffix: row for name, row in rows.items() for suffix in SUFFIXES[row.kind]
    }
    seen = set()
    async with fleet(2, placement={"scorers": [{"type": "active-requests"}]}) as (front, pods):
        prompt = ids(400)
        await front.complete(prompt)
        await front.settled(*pods)
        usage = {"include_usage": True}
        asked = (front.complete(prompt, stream=True, max_tokens=8, stream_options=usage) for _ in range(6))
        await asyncio.gather(*asked)
        await front.post("/v1/completions", {"model": "nobody's", "prompt": prompt})
        page = (await front.get("/metrics")).body.decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            row = of_sample[sample.name]
            assert row.kind == family.type, sample
            assert sample.labels.keys() - {"le"} == set(row.labels), sample
            seen.add(sample.name)
    assert {"p2p_gateway_inter_token_seconds_count", "p2p_gateway_pull_seconds_sum", "process_open_fds"} <= seen


def test_every_outcome_of_a_source_choice_begins_at_zero() -> None:
    """`rate` does not see the first of a series that begins with it."""
    metrics = Metrics(PodTable([], max_load_age=1.0), RadixIndex())
    page = "".join(metrics.registry.page(openmetrics=False))
    begun = re.findall(r'^p2p_gateway_pulls_total\{outcome="([^"]+)"\} 0', page, re.MULTILINE)
    assert set(begun) == set(get_args(SourceReason))
