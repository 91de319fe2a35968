"""Loads on fleets: what a scenario says, by itself or in a file. `presets` has some by name."""

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct

from loadgen.profile import PodProfile, profile_named
from loadgen.sim.ahead import prefetched
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
    before `warm_up_s` counts nowhere. `prefetch_s`: so many seconds before a turn its beginning is sent ahead.
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
    prefetch_s: float | None = None
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
        if self.requests is not None:
            requests = islice(requests, self.requests)
        return requests if self.prefetch_s is None else prefetched(requests, self.prefetch_s)
