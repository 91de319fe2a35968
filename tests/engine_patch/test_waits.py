import math

import pytest

from engine_patch.waits import LONGEST_DEADLINE_S, SHORTEST_TRANSFER_S, Waits, deadline_of, is_sound


@pytest.mark.parametrize(
    ("given", "expected"),
    [(300, 0.3), (1500.0, 1.5), (10**9, LONGEST_DEADLINE_S), (math.inf, LONGEST_DEADLINE_S)],
)
def test_a_request_may_say_how_long_it_waits(given: float, expected: float) -> None:
    assert deadline_of({"deadline_ms": given}, 2.0) == (expected, True)


@pytest.mark.parametrize("given", [None, 0, -1, "300", True, math.nan, [], {}])
def test_what_is_no_time_is_as_if_it_were_not_there(given: object) -> None:
    assert deadline_of({"deadline_ms": given}, 2.0) == (2.0, False)
    assert deadline_of({}, 2.0) == (2.0, False)


SOURCE = {"kv_request_id": "r", "remote_host": "10.0.0.1", "remote_port": 5710}


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"remote_kv_source": None},
        {"remote_kv_source": SOURCE | {"deadline_ms": "soon"}, "other": 5},
        {"remote_prefiller": SOURCE | {"remote_port": "5710"}, "remote_decoder": {}},
    ],
)
def test_routing_as_gateways_write_it_is_sound(params: object) -> None:
    assert is_sound(params)


@pytest.mark.parametrize("role", ["remote_kv_source", "remote_prefiller", "remote_decoder"])
@pytest.mark.parametrize(
    "named",
    ["10.0.0.1", [], SOURCE | {"kv_request_id": ["r"]}, SOURCE | {"remote_host": 5}, SOURCE | {"remote_port": 1.5}],
)
def test_routing_of_other_types_is_not(role: str, named: object) -> None:
    assert not is_sound({role: named})
    assert not is_sound([role])


def waiting(allowed_s: float = 2.0, *, exact: bool = False) -> Waits:
    waits = Waits(bytes_per_s=1000)
    waits.admit("r", allowed_s, exact=exact)
    return waits


def test_the_clock_starts_with_the_first_lookup_and_not_before() -> None:
    waits = waiting()
    assert not waits.expired("r", 100)
    assert waits.start("r", 100) == 100
    assert waits.start("r", 101) == 100
    assert not waits.expired("r", 101.9)
    assert waits.expired("r", 102)


def test_the_transfer_has_what_the_lookup_left_and_what_its_bytes_need() -> None:
    waits = waiting()
    waits.start("r", 100)
    assert waits.transfer_ends("r", 500, 100.5) == 102.5
    assert waits.transfer_ends("r", 0, 101.9) == 101.9 + SHORTEST_TRANSFER_S


def test_a_transfer_without_a_lookup_has_all_the_time() -> None:
    assert waiting().transfer_ends("r", 0, 100) == 102


def test_the_word_of_a_request_holds_for_a_transfer_of_any_size() -> None:
    waits = waiting(exact=True)
    waits.start("r", 100)
    assert waits.transfer_ends("r", 10**9, 100) == 102


def test_who_was_not_admitted_waits_without_a_limit() -> None:
    waits = Waits()
    assert waits.start("r", 0) is None
    assert not waits.expired("r", math.inf)
    assert waits.transfer_ends("r", 1, 0) is None


def test_nothing_is_left_of_a_request_that_is_over() -> None:
    waits = waiting()
    waits.finish("r")
    waits.finish("r")
    assert len(waits) == 0
