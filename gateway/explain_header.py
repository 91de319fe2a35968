"""`x-gateway-explain: 1` on a request: its own decision comes back with its answer, where the configuration allows it.

In a header of the same name, as compact JSON. A header has to be short, since proxies and clients refuse long ones; a
fleet's table is not. So the best candidates are in the header, as many as fit; where some are left out and the answer
is a stream of events, all are in a comment in front of the first event. Clients skip comments. No other byte changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from gateway.decision import Decision
from gateway.explained import explanation
from gateway.front.request import Request
from gateway.wire import Answer

_log = structlog.get_logger("gateway.explain_header")

NAME: Final = "x-gateway-explain"
_HEADER_BYTES: Final = 2048  # nginx takes 4096 or 8192 for all headers of an answer together
_COMMENT_BYTES: Final = 64 * 1024  # some hundreds of candidates


class ExplainHeader:
    """`allowed`: whether anybody may ask. `failed` is told of each that could not be made."""

    def __init__(self, failed: Callable[[], None], *, allowed: bool) -> None:
        self.allowed = allowed
        self._failed = failed
        self._faulted = False

    def told(self, request: Request, decision: Decision, headers: dict[str, str]) -> bytes:
        """Add what a request asks for to the headers of its answer. Returns what goes in front of its events.

        To be asked before anything follows the decision. O(candidates) for a request that asks. A fault costs the
        header and nothing else; the first traceback is logged.
        """
        if request.headers.get(NAME) != "1":
            return b""
        try:
            told = _compact(explanation(decision))
            short, whole = _within(told, _HEADER_BYTES), _within(told, _COMMENT_BYTES)
        except Exception:  # noqa: BLE001 - such as what a scorer of somebody's own left behind: the request goes on
            self._failed()
            if not self._faulted:
                self._faulted = True
                _log.exception("decision not explained")
            return b""
        headers[NAME] = short
        return b"" if whole == short else f": {NAME} {whole}\n\n".encode()


def takes_comments(answer: Answer) -> bool:
    """Whether a pod's answer is a stream of events that something can be put in front of."""
    told = {name.lower(): value for name, value in answer.headers}
    kind = told.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind == b"text/event-stream" and b"content-length" not in told and b"content-encoding" not in told


def _compact(explained: Mapping[str, Any]) -> dict[str, Any]:
    """The best candidate first. No field is called as one that an engine reports."""
    chosen, source = (explained["chosen"], explained["chosen_rank"]), explained["source"]
    candidates = sorted(
        explained["candidates"],
        key=lambda each: ((each["pod"], each["rank"]) != chosen, each["total"] is None, -(each["total"] or 0.0)),
    )
    return {
        "chosen": chosen[0],
        "rank": chosen[1],
        "source": source and source["pod"],
        "source_rank": source and source["rank"],
        "source_reason": explained["source_reason"],
        "tokens": explained["tokens"],
        "tokens_from": explained["tokens_from"],
        "candidates": [_candidate(each) for each in candidates],
    }


def _candidate(each: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "pod": each["pod"],
        "rank": each["rank"],
        **each["cached_tokens"],
        "unanswered": each["in_flight_unanswered"],
        "ttft_ms": each["predicted_ttft_ms"],
    }
    if each["filtered_by"] is not None:
        return {**told, "filtered_by": each["filtered_by"]}
    scores = {name: round(score, 4) for name, score in each["scores"].items()}
    return {**told, "scores": scores, "total": round(each["total"], 4)}


def _within(told: Mapping[str, Any], most: int) -> str:
    """As JSON of ASCII characters, with as many candidates as fit."""
    rest, candidates = {**told, "left_out": len(told["candidates"])}, []
    room = most - len(_json({**rest, "candidates": []}))
    for candidate in told["candidates"]:
        room -= len(_json(candidate)) + 1
        if room < 0:
            break
        candidates.append(candidate)
    return _json({**rest, "candidates": candidates, "left_out": len(told["candidates"]) - len(candidates)})


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
