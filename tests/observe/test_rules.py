"""Recording rules and alerts: they ask for what is there, each alert has its runbook, and fires and ends in time."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.observe.cases import CASES
from tests.observe.files import PROMETHEUS, RUNBOOKS, Rule, alerts, labels_by_name, recordings
from tests.observe.promql import RECORDED, counts, labels_in, metrics_in, selectors_in

LABELS = labels_by_name()
RECORDED_NAMES = {rule.name for rule in recordings()}
SEVERITIES = {"critical", "warning", "info"}
FEWEST_CHARACTERS = 20  # of each part of a runbook: less says nothing
ALL = [*recordings(), *alerts()]
MINUTES: Final = {"m": 1, "h": 60}
WINDOW: Final = re.compile(r" unless [^)]* offset (\d+)([mh])")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
each_rule = pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
each_alert = pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_those_that_prometheus_is_told_to_load() -> None:
    loaded = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    assert {*loaded["rule_files"], "prometheus.yml"} == {path.name for path in PROMETHEUS.iterdir()}
    assert [job["job_name"] for job in loaded["scrape_configs"]] == ["p2p-gateway"]


def test_no_two_rules_have_one_name() -> None:
    names = [rule.name for rule in ALL]
    assert sorted(set(names)) == sorted(names)


@each_rule
def test_it_uses_metrics_that_exist_with_labels_that_they_have(rule: Rule) -> None:
    name, expr, _ = rule
    names = metrics_in(expr)
    assert names
    assert {each for each in names if RECORDED in each} <= RECORDED_NAMES - {name}
    plain = {each for each in names if RECORDED not in each}
    assert plain <= LABELS.keys()
    for each, labels in selectors_in(expr):
        assert labels <= LABELS[each]
    grouped = labels_in(expr) - {label for _, labels in selectors_in(expr) for label in labels}
    assert all(any(label in LABELS[each] for each in plain) for label in grouped)


@each_rule
def test_a_counter_is_looked_at_as_a_rate_or_for_being_new(rule: Rule) -> None:
    _, expr, _ = rule
    found = counts(expr)
    matched = r"(|\{[^}]*\})"
    new = {
        name
        for name in found
        if re.search(rf"{name}{matched} unless last_over_time\({name}\1\[(\w+)\] offset \2\)", expr)
        and re.search(rf"or increase\({name}{matched}\[", expr)
    }
    assert found == new


@pytest.mark.parametrize("rule", recordings(), ids=lambda rule: rule.name)
def test_a_recorded_name_says_level_metric_and_operation(rule: Rule) -> None:
    name, _, fields = rule
    assert re.fullmatch(r"p2p_gateway:[a-z_]+:[a-z0-9_]+", name)
    assert fields.keys() == {"record", "expr"}


@each_alert
def test_an_alert_says_what_it_is_and_where_its_runbook_is(alert: Rule) -> None:
    name, expr, fields = alert
    assert name.startswith("P2PGateway")
    assert fields["labels"].keys() == {"severity"}
    assert fields["labels"]["severity"] in SEVERITIES
    assert fields["annotations"].keys() == {"summary", "runbook_url"}
    assert fields["annotations"]["runbook_url"] == f"docs/runbooks.md#{name.lower()}"
    used = set(re.findall(r"\$labels\.(\w+)", fields["annotations"]["summary"]))
    assert used <= labels_in(expr) | ({"instance"} if "by (" not in expr else set())


def test_every_alert_has_a_section_that_says_what_to_do_and_no_section_is_left_over() -> None:
    text = RUNBOOKS.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [alert.name for alert in alerts()]
    for name, section in sections.items():
        parts = re.findall(r"^\*\*(.*?)\*\*(.*?)(?=^\*\*|\Z)", section, re.MULTILINE | re.DOTALL)
        assert [title for title, _ in parts] == ["Means.", "Look at.", "Do."], name
        assert all(len(" ".join(text.split())) >= FEWEST_CHARACTERS for _, text in parts), name


@needs_promtool
def test_prometheus_takes_the_files() -> None:
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    assert "SUCCESS" in promtool(
        "check", "rules", *(str(PROMETHEUS / f"{name}.yml") for name in ("recording", "alerts"))
    )


def test_every_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == [alert.name for alert in alerts()]


@needs_promtool
def test_every_alert_fires_for_its_fault_and_no_sooner_and_ends_after_it(tmp_path: Path) -> None:
    """In Prometheus's own time machine: hours of series take a moment. Each case with the rules that it needs alone."""
    both = zip(CASES, alerts(), strict=True)
    promtool("test", "rules", *(file_for(tmp_path, alert, case.test()) for case, alert in both))


@needs_promtool
def test_a_scrape_that_was_missed_makes_no_old_failure_a_new_one(tmp_path: Path) -> None:
    told = [(case, alert, WINDOW.search(alert.expr)) for case, alert in zip(CASES, alerts(), strict=True)]
    new = [(case, alert, int(window[1]) * MINUTES[window[2]]) for case, alert, window in told if window]
    assert len(new) > len(told) / 4
    promtool("test", "rules", *(file_for(tmp_path, alert, case.missed(window)) for case, alert, window in new))


@needs_promtool
@pytest.mark.parametrize(("left_out", "fires"), [("0x7 1x0", 1), ("0x400 1x3", 0)], ids=["now and then", "once"])
def test_a_pod_is_left_out_when_its_trials_fail_also_where_few_are_made(
    tmp_path: Path, left_out: str, fires: int
) -> None:
    """A trial every two minutes, and a scrape every 15 s, of which one finds the pod left out."""
    series = 'p2p_gateway_pod_breaker_open{instance="gateway",job="p2p-gateway",pod="pod:1"}'
    values = " ".join([left_out] * (60 if fires else 1) + ["0x400"] * (not fires))
    asked = 'count(ALERTS{alertname="P2PGatewayPodLeftOut",alertstate="firing"}) or vector(0)'
    test = {
        "interval": "15s",
        "input_series": [{"series": series, "values": values}],
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": fires}]}
            for minute in range(95, 115)
        ],
    }
    (alert,) = (alert for alert in alerts() if alert.name == "P2PGatewayPodLeftOut")
    promtool("test", "rules", file_for(tmp_path, alert, test))


def file_for(folder: Path, alert: Rule, test: dict[str, Any]) -> str:
    """A file for `promtool test rules`."""
    needed = [rule.fields for rule in recordings() if rule.name in metrics_in(alert.expr)]
    groups = [{"name": "recorded", "rules": needed}] if needed else []
    rules = written(folder / f"{alert.name}.rules.yml", groups=[*groups, {"name": "a", "rules": [alert.fields]}])
    tests = {"rule_files": [str(rules)], "evaluation_interval": "30s", "tests": [test]}
    return str(written(folder / f"{alert.name}.test.yml", **tests))


def written(file: Path, **content: object) -> Path:
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file
