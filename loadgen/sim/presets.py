"""Scenarios by name: those that figures were published for, and some that nobody has published.

Profiles, shapes and rates are those of the publications. What they leave open is chosen here, and the same for all
arms: how long it takes until caches are warm, how much lengths differ (a fleet in lockstep is nobody's), which of the
profiles stands for an engine that was not named. docs/simulation.md has the choices that decide, and what comes out.
"""

from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from loadgen.sim.files import named
from loadgen.sim.scenarios import Arrival, Change, Scenario
from loadgen.sim.traced import TRACED, traced

_TCP: Final = {"prefill_us_per_token": 33.0, "pull_us_per_token": 15.7}
"""Of gpt-oss-120b where pods pull over TCP, as published: prefill is slower there as well."""


def _spread(mean: int, share: float = 0.5) -> dict[str, Any]:
    return {"type": "uniform", "low": int(mean * (1 - share)), "high": int(mean * (1 + share))}


def _pool(prefixes: int, tokens: int, rate: float, *, output: int, timeout_s: float = 600.0) -> Scenario:
    """A minute, from cold caches. How many fail is a matter of how long a queue has to grow."""
    shape = {"prefixes": prefixes, "prefix_tokens": tokens, "question_tokens": 256, "output_tokens": output}
    return Scenario(
        pods=16,
        dataset={"type": "shared-prefix", **shape},
        arrival=Arrival(rate=rate),
        requests=int(rate * 60),
        client_timeout_s=timeout_s,
    )


def _docqa(conversations: int, live: int) -> dict[str, Any]:
    return {
        "type": "docqa",
        "common_tokens": 80,  # the beginning that a chat template gives every prompt
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
    # Rates rose from 6 to 30: what comes before has warmed the caches, and no queue is left of it.
    "pool-uniform": replace(
        _pool(128, 48_000, 24, output=64), warm_up_rate=6, warm_up_s=60.0, requests=6 * 60 + 24 * 60
    ),
    "hot-64": _pool(64, 48_000, 48, output=28, timeout_s=120.0),
    "hot-32": _pool(32, 48_000, 48, output=28, timeout_s=120.0),
    "hot-8": _pool(8, 48_000, 48, output=28, timeout_s=120.0),
    "one-hot": replace(_pool(1, 16_000, 24, output=28), pods=4, alone_s=2.0),
    "docqa-16": Scenario(pods=16, dataset=_docqa(192, 128), client_timeout_s=120.0),
    # The same once more, counted: documents are where the first time has left them.
    "docqa-16-warm": Scenario(
        pods=16, dataset=_docqa(192, 128), client_timeout_s=120.0, again_s=600.0, warm_up_s=600.0
    ),
    "docqa-8": Scenario(pods=8, profile_changes=_TCP, dataset=_docqa(96, 64), concurrency=64),
    "spill-70k": Scenario(
        pods=16,
        profile="glm-wide-ep",
        # From rates and times to first token: 32 under way at 10.1 a second leave an answer 0.6 s after 2.56.
        dataset={"type": "shared-prefix", "prefixes": 1, "prefix_tokens": 70_000, "output_tokens": 16},
        concurrency=32,
        requests=1 + 96,
        alone_s=2.0,
        warm_up_s=1.0,
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
        profile_changes={"gpu_blocks": 4_800, "cpu_blocks": 0, "decode_us_per_kilotoken_context": 14.4},
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
    # Caches as small as those of b2b's pods: in the profile's own, prefill pods would keep what they have computed.
    "pd-agentic": Scenario(
        pods=6,
        prefill_pods=2,
        profile_changes={"gpu_blocks": 4_800, "cpu_blocks": 10_000},
        dataset={
            "type": "agentic",
            "sessions": 24,
            "tool_tokens": 4_000,
            "project_tokens": 0,
            "own_tokens": _spread(8_000),
            "turns": 12,
            "new_tokens": _spread(7_000),
            "output_tokens": _spread(300),
            "tool_pause": {"type": "uniform", "low": 1, "high": 20},
            "human_share": 0.0,
        },
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
"""Those whose load is a recorded one are in `traced`."""


def scenario_named(name: str, traces: Path | None = None) -> Scenario:
    """A preset, one that is recorded in the directory `traces`, or what a YAML file says.

    Raises ValueError with the reason.
    """
    if name in TRACED:
        return traced(name, traces)
    return named("scenario", name, {**SCENARIOS, **TRACED}, Scenario)
