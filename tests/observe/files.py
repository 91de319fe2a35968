"""The dashboards and rules that are shipped, and what the registry has for them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import config
from gateway.metrics import Metrics
from gateway.pods import PodTable
from index import RadixIndex

CHECKOUT = Path(config.__file__).parents[1]
GRAFANA = CHECKOUT / "config" / "grafana"
PROMETHEUS = CHECKOUT / "config" / "prometheus"
RUNBOOKS = CHECKOUT / "docs" / "runbooks.md"
DASHBOARDS = sorted(GRAFANA.glob("*.json"))
_SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}
_OF_SCRAPES = {"job", "instance"}


class Rule(NamedTuple):
    """A rule as it is in its file."""

    name: str
    expr: str
    fields: dict[str, Any]


def dashboard(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def panels(path: Path) -> list[dict[str, Any]]:
    """All but the rows' titles."""
    return [panel for panel in dashboard(path)["panels"] if panel["type"] != "row"]


def targets(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each query, with its panel's title."""
    return ((panel["title"], target) for panel in panels(path) for target in panel["targets"])


def rules(file: str, kind: str) -> list[Rule]:
    """The rules of a file that `record` or `alert`."""
    groups = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))["groups"]
    return [Rule(rule[kind], rule["expr"], rule) for group in groups for rule in group["rules"] if kind in rule]


def alerts() -> list[Rule]:
    return rules("alerts.yml", "alert")


def recordings() -> list[Rule]:
    return rules("recording.yml", "record")


def labels_by_name() -> dict[str, set[str]]:
    """Name → labels of every series of a gateway, those included that scraping adds."""
    found: dict[str, set[str]] = {"up": _OF_SCRAPES}
    for family in Metrics(PodTable([], max_load_age=10.0), RadixIndex()).registry.collect():
        of_family = set(getattr(family, "_labelnames", ())) | _OF_SCRAPES
        for suffix in _SUFFIXES.get(family.type, [""]):
            found[family.name + suffix] = of_family | ({"le"} if suffix == "_bucket" else set())
    return found
