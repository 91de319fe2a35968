"""Scenarios by name: those that figures were published for, and some that nobody has published.

Profiles, shapes and rates are those of the publications. What they leave open is chosen here, and the same for all
arms: how long it takes until caches are warm, how much lengths differ (a fleet in lockstep is nobody's), which of the
profiles stands for an engine that was not named.
"""

from typing import Any, Final

from msgspec.structs import replace

from loadgen.sim.files import named
from loadgen.sim.scenarios import Arrival, Change, Scenario

_TCP: Final = {"prefill_us_per_token": 33.0, "pull_us_per_token": 15.7}
"""Of gpt-oss-120b where pods pull over TCP, as published: prefill is slower there as well."""


def _spread(mean: int, share: float = 0.5) -> dict[str, Any]:
    return {"type": "uniform", "low": int(mean * (1 - share)), "high": int(mean * (1 + share))}


def _pool(prefixes: int, tokens: int, rate: float, *, output: int, timeout_s: float = 600.0) -> Scenario:
    """Warm for a minute, counted for one."""
    shape = {"prefixes": prefixes, "prefix_tokens": tokens, "question_tokens": 256, "output_tokens": output}
    return Scenario(
        pods=16,
        dataset={"type": "shared-prefix", **shape},
        arrival=Arrival(rate=rate),
        requests=int(rate * 120),
        warm_up_s=60.0,
        client_timeout_s=timeout_s,
    )


def _hot(prefixes: int) -> Scenario:
    return _pool(prefixes, 48_000, 48, output=28, timeout_s=120.0)


def _docqa(conversations: int, live: int) -> dict[str, Any]:
    return {
        "type": "docqa",
        "conversations": conversations,
        "live": live,
        "document_tokens": _spread(48_000, 0.1),
        "question_tokens": _spread(256),
        "output_tokens": _spread(256),
    }


_CHATS: Final = {"type": "chat", "system_tokens": 4_000, "think": {"type": "lognormal", "median": 15, "mean": 20}}
_STEADY: Final = Scenario(
    pods=8,
    dataset={**_CHATS, "question_tokens": _spread(2_000), "turns": 10},
    arrival=Arrival(rate=4, cv=1.0),
    requests=6_000,
    warm_up_s=30.0,
)
"""Sessions that go on while something happens to the fleet."""

SCENARIOS: Final = {
    "pool-uniform": _pool(128, 48_000, 24, output=64),
    "hot-64": _hot(64),
    "hot-32": _hot(32),
    "hot-8": _hot(8),
    "one-hot": replace(_pool(1, 16_000, 24, output=64), pods=4, alone_s=2.0),
    "docqa-16": Scenario(pods=16, dataset=_docqa(192, 128), client_timeout_s=600.0),
    "docqa-8": Scenario(pods=8, profile_changes=_TCP, dataset=_docqa(96, 64), concurrency=64),
    "spill-70k": Scenario(
        pods=16,
        profile="glm-wide-ep",
        dataset={"type": "shared-prefix", "prefixes": 1, "prefix_tokens": 70_000, "prefix_uses": 96},
        concurrency=32,
        requests=3 * 96,
    ),
    "fork-43": Scenario(
        pods=8,
        dataset={
            "type": "agentic",
            "sessions": 10,
            "tool_tokens": 0,
            "project_tokens": 0,
            "own_tokens": 40_000,
            "turns": 1,
            "forks": {"children": 43},
        },
        arrival=Arrival(rate=0.1),
    ),
    "long-doc-qa": Scenario(
        pods=2,
        profile="llama-8b",
        dataset={
            "type": "shared-prefix",
            "prefixes": 50,
            "prefix_tokens": 10_000,
            "output_tokens": 100,
            "draw": "round-robin",
        },
        concurrency=4,
        requests=100,
    ),
    "b2b": Scenario(
        pods=8,
        profile_changes={"gpu_blocks": 4_800, "cpu_blocks": 0},
        dataset={
            "type": "shared-prefix",
            "prefixes": 150,
            "prefix_tokens": 6_000,
            "question_tokens": 1_200,
            "output_tokens": 1_000,
        },
        arrival=Arrival(rate=20, cv=1.0),
        requests=2_400,
    ),
    "agentic": Scenario(
        pods=8,
        dataset={"type": "agentic", "sessions": 300, "forks": {"probability": 0.05}},
        arrival=Arrival(rate=0.5, cv=1.0),
    ),
    "scale-out": replace(_STEADY, timeline=(Change(at=60, kind="add", pod=8),)),
    "restart": replace(_STEADY, timeline=(Change(at=60, kind="restart", pod=0, down=30.0),)),
    "preemption": replace(
        _STEADY,
        timeline=(
            Change(at=60, kind="lose", pod=0),
            Change(at=60, kind="lose", pod=1),
            Change(at=120, kind="add", pod=8),
        ),
    ),
    "drain": replace(_STEADY, timeline=(Change(at=60, kind="drain", pod=0),)),
    "prefetch": replace(_STEADY, prefetch_s=2.0),
}
"""`mooncake` needs a trace's file, hence a scenario in a file."""


def scenario_named(name: str) -> Scenario:
    """A preset, or what a YAML file says. Raises ValueError with the reason."""
    return named("scenario", name, SCENARIOS, Scenario)
