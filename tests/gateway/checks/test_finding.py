from gateway.checks.finding import Finding, exit_code, summary

GOOD = Finding("ok", "model", "http://a", "serves m")
NOTE = Finding("note", "cpu-size", "http://a", "cannot be told")
POOR = Finding("warn", "replay", "http://a", "no replay", "give it one")
BAD = Finding("FAIL", "pull", "http://a", "pulled nothing", "look", peer="http://b")


def test_a_line_has_its_level_its_pod_what_it_is_and_what_to_do() -> None:
    assert GOOD.line == "ok   http://a: serves m"
    assert NOTE.line == "note http://a: cannot be told"
    assert POOR.line == "warn http://a: no replay; fix: give it one"
    assert BAD.line == "FAIL http://a ← http://b: pulled nothing; fix: look"


def test_only_what_keeps_pulls_from_working_fails() -> None:
    assert exit_code([GOOD, NOTE, POOR]) == 0
    assert exit_code([GOOD, BAD]) == 1


def test_the_last_line_says_what_there_is_to_do() -> None:
    assert summary([GOOD, NOTE]) == "pulls can work"
    assert summary([GOOD, POOR]) == "pulls can work; 1 to improve"
    assert summary([BAD, POOR, POOR]) == "pulls cannot work everywhere: 1 to fix, 2 to improve"
