"""How urgent a request is."""

import pytest

from gateway.admission.priority import priority_of


@pytest.mark.parametrize(("said", "priority"), [("7", 7), ("-7", -7), (" 7 ", 7), ("101", 100), ("-9999", -100)])
def test_without_keys_it_is_what_the_client_says_within_bounds(said: str, priority: int) -> None:
    assert priority_of(said, None) == priority


@pytest.mark.parametrize("said", [None, "", "high", "1.5", "0x10", "9" * 30, "9" * 8000])
def test_what_is_no_number_says_nothing(said: str | None) -> None:
    assert priority_of(said, None) == 0
    assert priority_of(said, 40) == 40


@pytest.mark.parametrize(("said", "priority"), [("50", 40), ("40", 40), ("39", 39), ("-100", -100), ("-999", -100)])
def test_a_keys_requests_may_ask_for_less_than_it_has(said: str, priority: int) -> None:
    assert priority_of(said, 40) == priority
