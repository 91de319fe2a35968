"""Prompts by which a model's files are compared with its pods: what a request may contain, in small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.tokens.chat import ChatFields

_UNICODE = "Zażółć gęślą jaźń — 你好、世界 🙂👩‍💻\u00a0\t\n\n  e\u0301 İ ß"
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Today's weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
                "required": ["city"],
            },
        },
    }
]


def _said(role: str, content: str, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Łódź"}'}}
_ASKED = [_said("system", "Be brief."), _said("user", "Hello!"), _said("assistant", "Hi."), _said("user", "Go on.")]


class Probe(NamedTuple):
    """One prompt: a text, or a chat."""

    name: str
    prompt: str | ChatFields


PROBES = (
    Probe("text", "Once upon a time, there was a prefix."),
    Probe("unicode text", _UNICODE),
    Probe("chat", ChatFields(messages=[_said("user", "What is a prefix?")])),
    Probe("chat of several turns", ChatFields(messages=_ASKED)),
    Probe("chat with unicode", ChatFields(messages=[_said("system", _UNICODE), _said("user", _UNICODE * 2)])),
    Probe("chat without a turn to go on with", ChatFields(messages=_ASKED[:3], add_generation_prompt=False)),
    Probe("chat with tools", ChatFields(messages=[_said("user", "How is it in Łódź?")], tools=_TOOLS)),
    Probe(
        "chat with a tool's answer",
        ChatFields(
            messages=[
                _said("user", "How is it in Łódź?"),
                _said("assistant", "", tool_calls=[_CALL]),
                _said("tool", "12 °C", tool_call_id="call_1"),
            ],
            tools=_TOOLS,
        ),
    ),
)


def difference(name: str, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """In what two tokenizations differ, for people; empty where they do not."""
    if len(ours) == len(theirs) and all(one == other for one, other in zip(ours, theirs, strict=True)):
        return ""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    return f"{name}: {len(ours)} ids here, {len(theirs)} there, of which the first {at} are alike"


class Standing:
    """Whether a model's files are still believed: a difference counts 1, and fades with the comparisons after it.

    They are believed no more from three in a row on, or some 5 % of all.
    """

    def __init__(self) -> None:
        self._score = 0.0

    def compared(self, *, equal: bool) -> bool:
        """Take one comparison in; returns whether the files are believed."""
        self._score = self._score * _FADES + (not equal)
        return self._score < _MOST


_FADES = 0.98
_MOST = 2.5
