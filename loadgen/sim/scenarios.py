"""Loads on fleets: the published ones by their ids, and those of files.

Profiles, shapes and rates are those of the publications; what they leave open (the order of arrivals, the event delay)
is chosen here, and the same for all arms.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec
import yaml
from msgspec import Struct

from loadgen.profile import PodProfile, profile_named
from loadgen.workload import Request, arrivals
from loadgen.workload.datasets import dataset
from loadgen.workload.traces import trace


class Change(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to the fleet `at` so many seconds: a pod comes up empty, or is lost with what it held.

    `restart`: it is lost, and comes up again after `down` seconds. `drain`: it gets no more requests, and goes when
    those under way have ended.
    """

    at: float
    kind: Literal["add", "lose", "restart", "drain"]
    pod: int
    down: float = 30.0


class Arrival(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rate` requests (sessions, where requests wait for others) per second; `cv` as in `arrivals.gamma`, 0: evenly."""

    rate: float
    cv: float = 0.0

    def times(self, rng: Random) -> Iterator[float]:
        """When they come."""
        return arrivals.gamma(self.rate, self.cv, rng) if self.cv else arrivals.constant(self.rate)


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`dataset` is a dataset's parameters with its name as `type`; `trace` a trace's format as `type`, `path`, `speed`
    and `limit`. One of the two. `profile`: a name, or a file; `profile_changes` are fields of it to change.

    `requests`: how many at most. `arrival` for a dataset without times of its own, `concurrency` for a closed loop.
    `alone_s`: for so long after the first request no other comes, so that what they share is in one place. What is due
    before `warm_up_s` counts nowhere.
    """

    pods: int
    profile: str = "gpt-oss-120b-h200"
    profile_changes: dict[str, Any] = {}
    dataset: dict[str, Any] | None = None
    trace: dict[str, Any] | None = None
    arrival: Arrival | None = None
    concurrency: int | None = None
    requests: int | None = None
    client_timeout_s: float = 600.0
    event_delay_ms: float = 5.0
    alone_s: float = 0.0
    warm_up_s: float = 0.0
    timeline: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what says too little or too much."""
        if (self.dataset is None) == (self.trace is None):
            raise ValueError("a scenario needs a dataset or a trace, and not both")
        if self.pods < 1:
            raise ValueError(f"pods must be at least 1, not {self.pods}")

    def pod_profile(self) -> PodProfile:
        """Raises ValueError for a profile or a field of it that there is not."""
        profile = profile_named(self.profile)
        try:
            return msgspec.convert(msgspec.to_builtins(profile) | self.profile_changes, PodProfile)
        except msgspec.ValidationError as error:
            raise ValueError(f"profile_changes: {error}") from None

    def load(self, seed: int) -> Iterable[Request]:
        """The requests of that seed, due when they are due. Raises ValueError for parameters that do not exist."""
        if self.trace is not None:
            kind = self.trace.get("type", "")
            requests = trace(kind, {name: value for name, value in self.trace.items() if name != "type"})
        else:
            parameters = dict(self.dataset or {})
            requests = dataset(parameters.pop("type", ""), parameters).requests(seed)
        if self.arrival is not None:
            requests = arrivals.due(requests, self.arrival.times(Random(seed)))
        return requests if self.requests is None else islice(requests, self.requests)


def _pool(prefixes: int, tokens: int, rate: float, *, output: int, seconds: float, timeout_s: float) -> Scenario:
    return Scenario(
        pods=16,
        dataset={
            "type": "shared-prefix",
            "prefixes": prefixes,
            "prefix_tokens": tokens,
            "question_tokens": 256,
            "output_tokens": output,
        },
        arrival=Arrival(rate=rate),
        requests=int(rate * seconds),
        client_timeout_s=timeout_s,
    )


def _docqa(pods: int, conversations: int, *, live: int, concurrency: int | None, tcp: bool) -> Scenario:
    # Over TCP (facts of the published run) prefill is slower too: 33 µs a token, transfer 15.7.
    changes = {"prefill_us_per_token": 33.0, "pull_us_per_token": 15.7} if tcp else {}
    return Scenario(
        pods=pods,
        profile_changes=changes,
        dataset={"type": "docqa", "conversations": conversations, "live": live},
        concurrency=concurrency,
    )


SCENARIOS: Final = {
    "pool-uniform": _pool(128, 48_000, 24, output=64, seconds=120, timeout_s=600),
    "hot-64": _pool(64, 48_000, 48, output=28, seconds=60, timeout_s=120),
    "hot-32": _pool(32, 48_000, 48, output=28, seconds=60, timeout_s=120),
    "hot-8": _pool(8, 48_000, 48, output=28, seconds=60, timeout_s=120),
    "one-hot": msgspec.structs.replace(
        _pool(1, 16_000, 24, output=64, seconds=60, timeout_s=600), pods=4, alone_s=2.0, warm_up_s=1.0
    ),
    "docqa-16": _docqa(16, 192, live=128, concurrency=None, tcp=False),
    "docqa-8": _docqa(8, 96, live=64, concurrency=64, tcp=True),
}
"""By the ids under which they were published."""


def scenario_named(name: str) -> Scenario:
    """A preset, or what a YAML file says. Raises ValueError with the reason."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}, and files that end in .yaml")
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Scenario)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(f"{name}: {error}") from error
