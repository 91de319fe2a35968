"""The dashboards: they can be provisioned, and ask for what is there. That each query has data is for `test_live`."""

import re
from collections import Counter as Tally
from pathlib import Path
from typing import Any

import pytest

from tests.observe.files import DASHBOARDS, dashboard, labels_by_name, panels, recordings, targets
from tests.observe.promql import RECORDED, counts, labels_in, metrics_in, selectors_in

LABELS = labels_by_name()
RECORDED_NAMES = {rule.name for rule in recordings()}
KINDS = {"timeseries": {"drawStyle", "lineWidth", "fillOpacity", "showPoints", "spanNulls"}, "stat": set()}
UNITS = {"s", "short", "reqps", "cps", "bool", "percentunit", "bytes"}
OF_A_PROCESS = {"build_info", "restores_total", "config_loaded_timestamp_seconds"}  # and not of its traffic

each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def test_there_is_one_for_the_fleet_pulls_a_pod_and_objectives() -> None:
    assert [path.stem for path in DASHBOARDS] == ["p2p-gateway", "pod", "pulls", "slo"]
    uids = [dashboard(path)["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(uids)


@each_dashboard
def test_it_can_be_provisioned(path: Path) -> None:
    board = dashboard(path)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", board["uid"])  # what Grafana takes for one
    assert board["title"]
    assert board["description"].endswith(".")
    assert board["id"] is None
    assert board["schemaVersion"] >= 38  # Grafana 10
    assert board.keys() >= {"annotations", "editable", "links", "refresh", "tags", "time", "timezone", "version"}
    assert "p2p-gateway" in board["tags"]  # by which they link to each other


@each_dashboard
def test_every_panel_is_whole(path: Path) -> None:
    for panel in panels(path):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS or unit.startswith("suffix: "), panel["title"]
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == [chr(ord("A") + number) for number in range(len(refs))], panel["title"]
        assert all(target["expr"].strip() and target["legendFormat"] for target in panel["targets"]), panel["title"]
        assert panel["fieldConfig"]["defaults"].get("custom", {}).keys() >= KINDS[panel["type"]], panel["title"]


@each_dashboard
def test_ids_are_unique_and_titles_too(path: Path) -> None:
    board = dashboard(path)
    for tally in (Tally(panel["id"] for panel in board["panels"]), Tally(panel["title"] for panel in board["panels"])):
        assert [each for each, count in tally.items() if count > 1] == []


@each_dashboard
def test_no_two_panels_overlap(path: Path) -> None:
    taken = Tally(
        (x, y)
        for panel in dashboard(path)["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    )
    assert max(taken.values()) == 1
    assert max(x for x, _ in taken) < 24


@each_dashboard
def test_the_data_source_is_the_readers_choice(path: Path) -> None:
    board = dashboard(path)
    assert board["templating"]["list"][0]["name"] == "datasource"
    assert board["templating"]["list"][0]["type"] == "datasource"
    used = [panel["datasource"] for panel in panels(path)] + [target["datasource"] for _, target in targets(path)]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in used)


@each_dashboard
def test_the_variables_are_used_and_filled_from_metrics_that_exist(path: Path) -> None:
    variables = dashboard(path)["templating"]["list"][1:]
    asked = " ".join(target["expr"] for _, target in targets(path))
    assert set(re.findall(r"\$(\w+)", asked)) - {"__rate_interval"} == {variable["name"] for variable in variables}
    for variable in variables:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert match[2] in LABELS[match[1]]
        # A request that never got a pod has an empty label, which a regular expression made of all values would miss.
        assert not variable["includeAll"] or variable["allValue"] == ".*"
        assert variable["includeAll"] is variable["multi"]
        operator = "=~" if variable["multi"] else "="
        assert set(re.findall(rf'\w(=~|!=|!~|=)"\${variable["name"]}"', asked)) == {operator}


@each_dashboard
def test_every_query_uses_metrics_that_exist_with_labels_that_they_have(path: Path) -> None:
    for title, target in targets(path):
        expr = target["expr"]
        names = metrics_in(expr)
        assert names, title
        assert {name for name in names if RECORDED in name} <= RECORDED_NAMES, expr
        plain = {name for name in names if RECORDED not in name}
        assert plain <= LABELS.keys(), expr
        for name, labels in selectors_in(expr):
            assert RECORDED in name or labels <= LABELS[name], expr
        for name in plain:
            matched = {label for each, labels in selectors_in(expr) for label in labels if each != name}
            assert labels_in(expr) - matched <= LABELS[name], expr


@each_dashboard
def test_every_legend_names_labels_that_its_query_keeps(path: Path) -> None:
    for title, target in targets(path):
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_in(target["expr"]), title


@each_dashboard
def test_counters_are_shown_as_rates(path: Path) -> None:
    assert [(title, counts(target["expr"])) for title, target in targets(path) if counts(target["expr"])] == []


def test_every_metric_that_says_how_the_fleet_does_is_shown() -> None:
    """Whoever adds a metric shows it on a dashboard, or says here that it tells nothing of the traffic."""
    asked = [target["expr"] for path in DASHBOARDS for _, target in targets(path)] + [r.expr for r in recordings()]
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for expr in asked for name in metrics_in(expr)}
    exist = {re.sub(r"_(bucket|sum|count)$", "", name) for name in LABELS if name.startswith("p2p_gateway_")}
    assert exist - shown == {f"p2p_gateway_{name}" for name in OF_A_PROCESS}


def test_the_checks_see_names_and_labels() -> None:
    expr = (
        'histogram_quantile(0.9, sum by (le, pull) (rate(a_bucket{model=~"$model", pod!="sum"}[$__rate_interval])))'
        ' or max (b:c_5m) unless d_total{x="y"} offset 5m and on (pod) avg by (pod) (e) > 14.4 * 0.001'
    )
    assert metrics_in(expr) == {"a_bucket", "b:c_5m", "d_total", "e"}
    assert labels_in(expr) == {"le", "pull", "model", "pod", "x"}
    assert selectors_in(expr) == [("a_bucket", {"model", "pod"}), ("d_total", {"x"})]
    assert counts(expr) == {"d_total"}
    assert counts("sum (rate(a_total[5m])) / sum (increase(b_count[5m]))") == set()
    whatever: dict[str, Any] = {"expr": "sum(a) by (b)"}
    assert metrics_in(whatever["expr"]) == {"a"}
