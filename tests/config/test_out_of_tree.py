"""Scorers of somebody else, by module and class."""

import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from config.load import ConfigError, decode
from config.out_of_tree import OutOfTree
from config.schema import Config
from scorers import Candidate, MaxScore, PlacementRequest, Queue, place

MODULE = """
from dataclasses import dataclass
from msgspec import Struct

class Typed(Struct, frozen=True, forbid_unknown_fields=True):
    bonus: float
    needs = ("labels", "session")

    def score(self, request, candidates):
        return [self.bonus if candidate.rank else 0.0 for candidate in candidates]

@dataclass
class Data:
    bonus: float = 1.0

    def score(self, request, candidates):
        return [self.bonus] * len(candidates)

class Plain:
    def __init__(self, *values):
        self.values = values

    def score(self, request, candidates):
        return [0.25] * len(candidates)

class Picky(Plain):
    def __init__(self, *, bonus):
        if bonus > 1:
            raise OverflowError("too\\nmuch")

class Greedy(Plain):
    needs = ("weather",)

class Silent:
    pass

class Curious:
    def score(self, candidates):
        return []

class Slow:
    async def score(self, request, candidates):
        return []

class Wild:
    def __init__(self, value):
        self.value = value

    def score(self, request, candidates):
        return [self.value] * len(candidates)

not_a_class = 7
"""
FLEET = [Candidate(pod="a"), Candidate(pod="b", rank=1)]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "scoring.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "outside" / "broken.py").write_text("import no_such_module\n", encoding="utf-8")
    (tmp_path / "outside" / "unreadable.py").write_text("def\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "outside"]:
        del sys.modules[name]


def decoded(*scorers: dict[str, Any]) -> Config:
    return decode({"pods": [{"url": "http://a:1"}], "placement": {"scorers": list(scorers)}}, source="f.yaml")


def outside(name: str, **params: Any) -> OutOfTree:
    (scorer,) = decoded({"type": f"outside.scoring:{name}", "params": params}).placement.scorers
    assert isinstance(scorer, OutOfTree)
    return scorer


def refusal(scorer: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        decoded({"type": "queue"}, scorer)
    line = str(caught.value)
    assert "\n" not in line
    place = "f.yaml: $.placement.scorers[1]"
    assert line.startswith(place)
    return line.removeprefix(place)


@pytest.mark.parametrize(("name", "params"), [("Typed", {"bonus": 0.25}), ("Data", {"bonus": 0.25}), ("Plain", {})])
def test_a_struct_a_dataclass_and_any_other_class_can_be_a_scorer(
    name: str, params: dict[str, Any], request_of_1000: PlacementRequest
) -> None:
    scorer = outside(name, **params)
    assert scorer.score(request_of_1000, FLEET)[1] == 0.25
    assert scorer.name == f"outside.scoring:{name}"


def test_it_takes_part_beside_others_with_its_weight(request_of_1000: PlacementRequest) -> None:
    scorers = decoded({"type": "queue"}, {"type": "outside.scoring:Typed", "weight": 5, "params": {"bonus": 1}})
    placement = place(request_of_1000, FLEET, scorers.placement.scorers, MaxScore(), coordinate=0)
    assert placement.scores == {"queue": [1, 1], "outside.scoring:Typed": [0, 1]}
    assert (placement.chosen, placement.totals) == (1, [2, 7])


def test_it_says_which_columns_it_reads() -> None:
    assert outside("Typed", bonus=1).needs == ("labels", "session")
    assert outside("Plain").needs == ()


def test_it_is_refused_for_columns_that_do_not_exist() -> None:
    assert refusal({"type": "outside.scoring:Greedy"}) == (
        ": outside.scoring:Greedy: needs columns that do not exist: weather"
    )


def test_a_configuration_with_one_survives_being_written_and_read() -> None:
    config = decoded({"type": "outside.scoring:Typed", "weight": 2, "params": {"bonus": 1}})
    assert decode(msgspec.to_builtins(config), source="") == config
    assert decode(msgspec.json.decode(msgspec.json.encode(config)), source="") == config


def test_two_classes_may_be_listed_and_one_class_twice_may_not() -> None:
    assert len(decoded({"type": "outside.scoring:Data"}, {"type": "outside.scoring:Plain"}).placement.scorers) == 2
    with pytest.raises(ConfigError, match=r"\$\.placement: scorer 'outside.scoring:Data' is listed twice"):
        decoded({"type": "outside.scoring:Data"}, {"type": "outside.scoring:Data"})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("outside.nowhere:X", "the module cannot be imported: ModuleNotFoundError: No module named 'outside.nowhere'"),
        ("outside.broken:X", "the module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("outside.unreadable:X", "the module cannot be imported: SyntaxError: invalid syntax (unreadable.py, line 1)"),
        ("outside.scoring:Nobody", "the module has no such class"),
        ("outside.scoring:not_a_class", "the module has no such class"),
        ("outside.scoring:Silent", "not a scorer, it has no score(request, candidates)"),
        ("outside.scoring:Curious", "not a scorer, it has no score(request, candidates)"),
        ("outside.scoring:Slow", "not a scorer, score is asynchronous"),
    ],
)
def test_what_is_no_scorer_is_refused_with_place_and_reason(path: str, reason: str) -> None:
    assert refusal({"type": path}) == f": {path}: {reason}"


@pytest.mark.parametrize("path", [":X", "outside.scoring:", "outside/scoring:X", "a:b:c", ".outside:X", "outside. x:Y"])
def test_what_is_no_module_and_class_is_refused(path: str) -> None:
    assert refusal({"type": path}) == f": {path!r} is not module:Class"


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("Typed", {"bonus": "1"}, ": Expected `float`, got `str`"),
        ("Typed", {"bonus": 1, "malus": 1}, ": Object contains unknown field `malus`"),
        ("Typed", {}, ": Object missing required field `bonus`"),
        ("Data", {"bonus": []}, ": Expected `float`, got `array`"),
        ("Plain", {"x": 1}, ": TypeError: Plain.__init__() got an unexpected keyword argument 'x'"),
        ("Picky", {"bonus": 2}, ": OverflowError: too much"),
    ],
)
def test_params_that_do_not_fit_are_refused(name: str, params: dict[str, Any], reason: str) -> None:
    path = f"outside.scoring:{name}"
    at = ".bonus" if "Expected" in reason else ""
    assert refusal({"type": path, "params": params}) == f": {path}: params{at}{reason}"


def test_its_weight_and_its_keys_are_checked_as_of_any_scorer() -> None:
    assert refusal({"type": "outside.scoring:Data", "weight": -1}).startswith(".weight: ")
    assert refusal({"type": "outside.scoring:Data", "wieght": 1}) == ": Object contains unknown field `wieght`"
    assert refusal({"type": "outside.scoring:Data", "path": "x:Y"}).startswith(".type: ")
    assert refusal({"type": "module:Class"}) == (
        ": module:Class: the module cannot be imported: ModuleNotFoundError: No module named 'module'"
    )


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "high", None])
def test_a_value_that_is_no_score_makes_it_neutral(value: Any, request_of_1000: PlacementRequest) -> None:
    scorer = outside("Wild", value=value)
    placement = place(request_of_1000, FLEET, [scorer, Queue()], MaxScore(), coordinate=0)
    assert placement.scores == {"outside.scoring:Wild": [0.5, 0.5], "queue": [1, 1]}
    assert [fault.scorer for fault in placement.faults] == ["outside.scoring:Wild"]


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0])
def test_the_ends_of_the_range_are_scores(value: float, request_of_1000: PlacementRequest) -> None:
    placement = place(request_of_1000, FLEET, [outside("Wild", value=value)], MaxScore(), coordinate=0)
    assert (placement.scores, placement.faults) == ({"outside.scoring:Wild": [value, value]}, ())


@pytest.mark.parametrize(
    "value", [Decimal("0.5"), np.float64(0.5), np.float32(0.5)], ids=["decimal", "double", "single"]
)
def test_numbers_of_any_kind_are_scores(value: Any, request_of_1000: PlacementRequest) -> None:
    placement = place(request_of_1000, FLEET, [outside("Wild", value=value), Queue()], MaxScore(), coordinate=0)
    assert placement.faults == ()
    assert msgspec.json.decode(msgspec.json.encode(placement.totals)) == [2.5, 2.5]
