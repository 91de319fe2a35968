import json
import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric

import config
from gateway.metrics import Metrics
from gateway.pods import PodTable
from index import RadixIndex

DASHBOARD = Path(config.__file__).parent / "grafana" / "p2p-gateway.json"
WORDS = {"sum", "min", "max", "rate", "increase", "histogram_quantile"}
_QUOTED = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"\b[a-zA-Z_]\w*\b")


def exposed(family: Metric) -> list[str]:
    """The names that a family of metrics has on the page."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    return [family.name + suffix for suffix in suffixes[family.type]]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Name → labels of every metric of a gateway."""
    metrics = Metrics(PodTable([], max_load_age=10.0), RadixIndex())
    names = {
        kind._name: set(kind._labelnames) for kind in vars(metrics).values() if isinstance(kind, Counter | Histogram)
    }
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        of_family = names.get(family.name, set(getattr(family, "_labelnames", ())))
        found |= {name: of_family | ({"le"} if name.endswith("_bucket") else set()) for name in exposed(family)}
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    return (target["expr"] for panel in panels for target in panel["targets"])


def metrics_in(expr: str) -> set[str]:
    bare = _RANGE.sub("", _GROUPED.sub("", _SELECTOR.sub(r"\1", _QUOTED.sub("", expr))))
    return set(_NAME.findall(bare)) - WORDS


def labels_in(expr: str) -> set[str]:
    matchers = [matcher for _, inner in _SELECTOR.findall(_QUOTED.sub("", expr)) for matcher in inner.split(",")]
    grouped = [name for inner in _GROUPED.findall(expr) for name in inner.split(",")]
    return {re.split(r"[=!~]", name)[0].strip() for name in (*matchers, *grouped)}


def test_every_expression_uses_metrics_that_exist(panels: list[dict[str, Any]], labels: dict[str, set[str]]) -> None:
    for expr in expressions(panels):
        assert metrics_in(expr), expr
        assert metrics_in(expr) <= labels.keys(), expr


def test_every_expression_uses_labels_that_its_metric_has(
    panels: list[dict[str, Any]], labels: dict[str, set[str]]
) -> None:
    for expr in expressions(panels):
        for name in metrics_in(expr):
            assert labels_in(expr) <= labels[name], expr


def test_every_legend_names_labels_that_its_expression_keeps(panels: list[dict[str, Any]]) -> None:
    for target in (target for panel in panels for target in panel["targets"]):
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_in(target["expr"]), target


def test_the_check_sees_names_and_labels() -> None:
    expr = 'histogram_quantile(0.9, sum by (le, pull) (rate(a_bucket{model=~"$model", pod!="sum"}[$__rate_interval])))'
    assert metrics_in(expr) == {"a_bucket"}
    assert labels_in(expr) == {"le", "pull", "model", "pod"}


def test_every_metric_that_says_how_the_fleet_does_is_shown(
    panels: list[dict[str, Any]], labels: dict[str, set[str]]
) -> None:
    shown = {name for expr in expressions(panels) for name in metrics_in(expr)}
    unshown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in labels} - {
        name.removesuffix("_bucket") for name in shown
    }
    of_a_process = {  # and not of its traffic
        "build_info",
        "restores_total",
        "costs_file_total",
        "file_reloads_total",
        "config_reloads_total",
        "config_loaded_timestamp_seconds",
        "access_log_dropped_lines_total",
        "log_lost_lines_total",
    }
    assert unshown == {f"p2p_gateway_{name}" for name in of_a_process}


def test_counters_are_shown_as_rates(panels: list[dict[str, Any]]) -> None:
    for expr in expressions(panels):
        counted = any(name.endswith(("_total", "_bucket")) for name in metrics_in(expr))
        assert counted == bool(re.search(r"\b(rate|increase)\(", expr)), expr


def test_panel_ids_are_unique(dashboard: dict[str, Any]) -> None:
    assert [id_ for id_, n in Tally(panel["id"] for panel in dashboard["panels"]).items() if n > 1] == []


def test_every_panel_says_what_it_shows_and_in_which_unit(panels: list[dict[str, Any]]) -> None:
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["expr"] and target["refId"] for target in panel["targets"])


def test_no_two_panels_overlap(dashboard: dict[str, Any]) -> None:
    taken = Tally(
        (x, y)
        for panel in dashboard["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert max(taken.values()) == 1
    assert max(x for x, _ in taken) < 24


def test_the_dashboard_can_be_provisioned(dashboard: dict[str, Any]) -> None:
    assert dashboard["uid"] == "p2p-gateway"
    assert dashboard["id"] is None
    assert dashboard["schemaVersion"] >= 38  # Grafana 10


def test_the_data_source_is_the_readers_choice(dashboard: dict[str, Any], panels: list[dict[str, Any]]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert list(variables) == ["datasource", "pod", "model"]
    assert variables["datasource"]["type"] == "datasource"
    used = [panel["datasource"] for panel in panels] + [t["datasource"] for panel in panels for t in panel["targets"]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in used)


def test_the_variables_are_filled_from_metrics_that_exist(
    dashboard: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    for variable in dashboard["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] in labels[match[1]]
        # A request that never got a pod has an empty label, which a regular expression made of all values would miss.
        assert variable["allValue"] == ".*"
