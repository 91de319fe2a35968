"""Scorers that are not of this project: `{type: "module:Class", weight: 1, params: {…}}` in a configuration.

The class is imported and made when the configuration is decoded, so what is wrong with it is refused like any other
wrong value. It is a scorer as `scorers.base` has it, less name and weight, which come from the configuration: a msgspec
struct or a dataclass is made of `params` with its types checked, any other class is called with them. Importing runs
somebody's code with the rights of the gateway, as the rest of the file's author has them anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from inspect import iscoroutinefunction, signature
from typing import Any, Final, Protocol, cast, get_args

import msgspec
from msgspec import Struct

from scorers import Candidate, Column, PlacementRequest
from scorers.base import Weight, require_weight

TAG: Final = "module:Class"
PATH: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"


class _Scores(Protocol):
    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]: ...


class OutOfTree(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True, tag=TAG):
    """A scorer by its class. `path` is what the configuration gives as `type`.

    A score outside 0 … 1, or NaN, is an error of the scorer as a whole: `place` takes it for neutral then.
    """

    path: str = ""
    weight: Weight = 1.0
    params: dict[str, Any] = {}

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if unknown := set(self.needs) - set(get_args(Column)):
            raise ValueError(f"{self.path}: needs columns that do not exist: {', '.join(sorted(map(str, unknown)))}")

    @cached_property
    def _scorer(self) -> _Scores:
        return _made(self.path, self.params)

    @property
    def name(self) -> str:
        """`module:Class`."""
        return self.path

    @property
    def needs(self) -> tuple[Column, ...]:
        """The columns that the class says it reads."""
        return tuple(getattr(self._scorer, "needs", ()))

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return the class's scores. Raises ValueError for one that is none, and whatever the class raises."""
        scores = [float(score) for score in self._scorer.score(request, candidates)]
        for score in scores:
            if not 0 <= score <= 1:
                raise ValueError(f"{score} is not in 0 … 1")
        return scores


def spelt_out(data: dict[str, Any]) -> dict[str, Any]:
    """A configuration in which scorers of the form `{type: "module:Class"}` are as `OutOfTree` has them."""
    placement = data.get("placement")
    if not isinstance(placement, dict) or not isinstance(scorers := placement.get("scorers"), list):
        return data
    return {**data, "placement": {**placement, "scorers": [_spelt_out(scorer) for scorer in scorers]}}


def _spelt_out(scorer: object) -> object:
    if isinstance(scorer, dict) and ":" in str(scorer.get("type")) and "path" not in scorer:
        return {**scorer, "type": TAG, "path": scorer["type"]}
    return scorer


def _made(path: str, params: dict[str, Any]) -> _Scores:
    """Raises ValueError with the reason, in one line."""
    if re.fullmatch(PATH, path) is None:
        raise ValueError(f"{path!r} is not module:Class")
    module, _, name = path.partition(":")
    try:
        kind = getattr(import_module(module), name, None)
    except Exception as error:  # whatever a module does when it is imported
        raise ValueError(f"{path}: the module cannot be imported: {_line(error)}") from error
    if not isinstance(kind, type):
        raise ValueError(f"{path}: the module has no such class")  # noqa: TRY004 - a configuration's value is wrong
    scorer = _with(kind, params, path)
    try:
        signature(scorer.score).bind(None, ())  # type: ignore[attr-defined]  # that is what is looked at
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{path}: not a scorer, it has no score(request, candidates)") from error
    if iscoroutinefunction(scorer.score):  # type: ignore[attr-defined]
        raise ValueError(f"{path}: not a scorer, score is asynchronous")
    return cast("_Scores", scorer)


def _with(kind: type, params: dict[str, Any], path: str) -> object:
    try:
        return msgspec.convert(params, kind) if issubclass(kind, Struct) or is_dataclass(kind) else kind(**params)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        raise ValueError(f"{path}: params{place.rstrip('`')}: {reason}") from error
    except Exception as error:  # whatever a class does when it is made
        raise ValueError(f"{path}: params: {_line(error)}") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
