from collections.abc import Sequence
from typing import Any

import pytest

from gateway.checks.facts import PodFacts, RankFacts
from gateway.checks.finding import Finding
from gateway.checks.judge import judge, settled
from gateway.checks.told import Occupancy, Trail
from gateway.served import Served
from tests.gateway.announcer import batch, stored

URL = "http://a:8000"
GOOD = ["model", "events", "replay", "cpu-tier", "generated", "self-describing", "cpu-size", "p2p-port", "details"]


def occupancy(*, most: int, evicted: bool = False, first: int = 0) -> Occupancy:
    seen = Occupancy()
    events = [stored(i, tokens=[], medium="CPU") | {"block_size": 0} for i in range(most)]
    gone = [{"type": "BlockRemoved", "block_hashes": [0], "medium": "CPU"}] if evicted else []
    seen.apply(first, batch(*events, *gone))
    return seen


def rank(**different: Any) -> RankFacts:
    trail = Trail([1])
    trail.block_size = 16
    facts: dict[str, Any] = {
        "label": URL,
        "endpoint": "tcp://a:5557",
        "stream": "arriving",
        "trail": trail,
        "prompt_blocks": 2,
        "offloaded": 3,
        "replay": "answers",
        "occupancy": occupancy(most=200),
        "gpu_blocks": 100,
        "p2p": ("a", 5710),
        "tells_cached": True,
    }
    return RankFacts(**facts | different)


def pod(*ranks: RankFacts, **different: Any) -> PodFacts:
    return PodFacts(
        **{"url": URL, "models": [Served("m", max_model_len=8192)], "version": "0.32.0"} | different, ranks=[*ranks]
    )


def judged(**different: Any) -> Sequence[Finding]:
    return list(judge(pod(rank(**different))))


def wrong(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.check) for finding in findings if finding.level != "ok"]


def test_a_pod_as_it_should_be_has_a_good_word_for_each_check() -> None:
    findings = judged()
    assert [(finding.level, finding.check) for finding in findings] == [("ok", check) for check in GOOD]
    assert findings[0].message == "serves m, up to 8,192 tokens; vLLM 0.32.0"
    assert "blocks of 16 tokens" in findings[1].message
    assert not any(finding.fix for finding in findings)


@pytest.mark.parametrize(
    ("different", "expected"),
    [
        ({"stream": "none"}, ("FAIL", "events")),
        ({"stream": "unreachable", "problem": "Connection refused"}, ("FAIL", "events")),
        ({"stream": "silent"}, ("FAIL", "events")),
        ({"unusable": 3}, ("warn", "events")),
        ({"replay": "none"}, ("warn", "replay")),
        ({"replay": "silent"}, ("warn", "replay")),
        ({"offloaded": 0}, ("FAIL", "cpu-tier")),
        ({"offloaded": 2}, ("warn", "generated")),
        ({"described": False}, ("warn", "self-describing")),
        ({"gpu_blocks": None}, ("note", "cpu-size")),
        ({"occupancy": None}, ("note", "cpu-size")),
        ({"occupancy": occupancy(most=50)}, ("note", "cpu-size")),
        ({"occupancy": occupancy(most=50, evicted=True, first=9)}, ("note", "cpu-size")),
        ({"occupancy": occupancy(most=50, evicted=True)}, ("warn", "cpu-size")),
        ({"p2p": None}, ("FAIL", "p2p-port")),
        ({"refused": "connection refused"}, ("FAIL", "p2p-port")),
        ({"unreached": "no connection within the deadline"}, ("note", "p2p-port")),
        ({"offloaded": 2, "coarse": True}, ("note", "generated")),
        ({"tells_cached": False}, ("warn", "details")),
    ],
)
def test_each_thing_that_is_wrong_is_one_finding_with_a_fix(
    different: dict[str, Any], expected: tuple[str, str]
) -> None:
    findings = [finding for finding in judged(**different) if finding.level != "ok"]
    assert [(finding.level, finding.check) for finding in findings if finding.check != "replay"] == (
        [] if expected[1] == "replay" else [expected]
    )
    assert expected in wrong(findings)
    assert all(finding.fix for finding in findings if finding.level != "note")


def test_without_events_nothing_is_said_of_tiers() -> None:
    checks = {finding.check for finding in judged(stream="silent")}
    assert checks.isdisjoint({"cpu-tier", "generated", "self-describing", "cpu-size"})


def test_a_tier_that_is_missing_is_not_judged_further() -> None:
    checks = {finding.check for finding in judged(offloaded=0)}
    assert checks.isdisjoint({"generated", "self-describing", "cpu-size"})


def test_a_pull_that_came_proves_a_tier_that_events_did_not_show() -> None:
    other = "http://b:8000"
    missing = [Finding("FAIL", "cpu-tier", pod, "no tier", "start it with one") for pod in (URL, other)]
    pulls = [
        Finding("ok", "pull", other, "pulled", peer=URL),
        Finding("FAIL", "pull", URL, "pulled nothing", peer=other),
    ]
    found = settled([*missing, *pulls])
    assert [finding.level for finding in found] == ["note", "FAIL", "ok", "FAIL"]
    assert (found[0].message, found[0].fix) == ("no tier; but one came from it", "")


def test_a_pod_whose_prompt_failed_is_not_blamed_for_silence() -> None:
    findings = judged(failed="answered 500", stream="silent", tells_cached=None)
    assert wrong(findings)[0] == ("FAIL", "answers")
    assert ("FAIL", "events") not in wrong(findings)
    assert "details" not in {finding.check for finding in findings}


def test_a_stream_without_a_trail_has_no_block_size() -> None:
    assert "blocks of None tokens" in judged(trail=None)[1].message


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("http://a:8000/health: Connection refused", "start the pod"),
        ("http://a:8000/health answered 401", "api_key_file"),
        ("http://a:8000/health answered 403", "api_key_file"),
        ("https://a:8000/health: certificate verify failed", "upstream_tls.ca"),
    ],
)
def test_of_a_pod_that_is_not_reachable_that_is_all(why: str, fix: str) -> None:
    (finding,) = judge(pod(unreachable=why))
    assert (finding.level, finding.check) == ("FAIL", "reachable")
    assert fix in finding.fix


def test_of_a_pod_without_a_model_that_is_all() -> None:
    (finding,) = judge(pod(models=[]))
    assert (finding.level, finding.check) == ("FAIL", "model")


def test_an_identity_that_cannot_be_read_is_told_of() -> None:
    assert wrong(list(judge(pod(identity_problem="answered 500")))) == [("warn", "identity")]


def test_a_pod_may_tell_neither_its_version_nor_its_limit() -> None:
    (finding,) = judge(pod(models=[Served("m")], version=None))
    assert finding.message == "serves m; an engine that does not tell its version"
