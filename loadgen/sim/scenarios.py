"""Loads on fleets: what a scenario says, by itself or in a file. `presets` has some by name."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadgen.profile import PodProfile, profile_named
from loadgen.sim.ahead import prefetched
from loadgen.sim.feed import Delivery
from loadgen.workload import Piece, Request, arrivals
from loadgen.workload.datasets import dataset
from loadgen.workload.datasets.distributions import Seconds, check_range
from loadgen.workload.seeds import answer_piece
from loadgen.workload.traces import trace


class Change(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens to the fleet `at` so many seconds: a pod comes up empty, or is lost with what it held.

    `restart`: it is lost, and comes up again after `down` seconds. `drain`: it gets no more requests, and goes when
    those under way have ended. `lose_events`: what it tells of its blocks within `down` seconds does not arrive.
    `slow_link`: for `down` seconds pulls from it and by it take `times` as long.
    """

    at: float
    kind: Literal["add", "lose", "restart", "drain", "lose_events", "slow_link"]
    pod: int
    down: float = 30.0
    times: float = 10.0

    def __post_init__(self) -> None:
        """Refuse a link that would have no speed."""
        if not self.times > 0:
            raise ValueError(f"times must be above 0, not {self.times}")


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
    `alone_s`: for so long after the first request (of a closed loop, after its answer) no other comes, so that what
    they share is in one place. What is due before `warm_up_s` counts nowhere; until then arrivals have the rate
    `warm_up_rate`. `again_s`: so many seconds after its beginning the whole load is sent once more. `prefetch_s`: so
    many seconds before a turn its beginning is sent ahead. `event_…`: see `Delivery`.

    `met`: the first pods have pulled from each other before, so that their connections stand. `prefill_pods`: those
    numbered below compute prompts only, and the others answer only; 0: all do both.
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
    event_delay_ms: Seconds = 5.0
    event_loss: float = 0.0
    event_replay: bool = True
    alone_s: float = 0.0
    again_s: float = 0.0
    prefetch_s: float | None = None
    met: bool = True
    prefill_pods: int = 0
    warm_up_s: float = 0.0
    warm_up_rate: float | None = None
    timeline: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what says too little or too much."""
        if (self.dataset is None) == (self.trace is None):
            raise ValueError("a scenario needs a dataset or a trace, and not both")
        if self.pods < 1:
            raise ValueError(f"pods must be at least 1, not {self.pods}")
        if not 0 <= self.prefill_pods < self.pods:
            raise ValueError(f"prefill_pods must be at least 0 and below {self.pods}, not {self.prefill_pods}")
        if self.concurrency is not None and self.again_s:
            raise ValueError("a closed loop does not go by times: it has no again_s")
        if self.arrival is None and self.warm_up_rate is not None:
            raise ValueError("warm_up_rate needs an arrival")
        check_range(0, alone_s=self.alone_s, again_s=self.again_s, warm_up_s=self.warm_up_s)
        self.delivery()

    def delivery(self) -> Delivery:
        """How pods' events reach the gateway. Raises ValueError for what is out of range."""
        return Delivery(delay_ms=self.event_delay_ms, loss=self.event_loss, replay=self.event_replay)

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
            if "path" in self.trace and not Path(str(self.trace["path"])).is_file():
                raise ValueError(f"trace: there is no file {self.trace['path']}")
            requests = trace(kind, {name: value for name, value in self.trace.items() if name != "type"})
        else:
            parameters = dict(self.dataset or {})
            requests = dataset(parameters.pop("type", ""), parameters).requests(seed)
        if self.arrival is not None:
            requests = arrivals.due(requests, self._times(self.arrival, Random(seed)))
        if self.requests is not None:
            requests = islice(requests, self.requests)
        if self.alone_s:
            requests = self._first_alone(requests)
        if self.again_s:
            requests = _twice(requests, self.again_s)
        return requests if self.prefetch_s is None else prefetched(requests, self.prefetch_s)

    def _times(self, arrival: Arrival, rng: Random) -> Iterator[float]:
        if self.warm_up_rate is None:
            return arrival.times(rng)
        slow = takewhile(lambda at: at < self.warm_up_s, replace(arrival, rate=self.warm_up_rate).times(rng))
        return chain(slow, (self.warm_up_s + at for at in arrival.times(rng)))

    def _first_alone(self, requests: Iterable[Request]) -> Iterator[Request]:
        first: Request | None = None
        for request in requests:
            if first is None:
                first = request
            elif request.after is not None:
                pass
            elif self.concurrency is None:
                request = replace(request, at=request.at + self.alone_s)  # noqa: PLW2901
            else:
                request = replace(request, after=first.number, pause=self.alone_s)  # noqa: PLW2901
            yield request


def _twice(requests: Iterable[Request], after_s: float) -> Iterator[Request]:
    """The load, and `after_s` later the same prompts once more, as far as they are no answers."""
    made = list(requests)
    yield from made
    shift = 1 + max((request.number for request in made), default=0)
    for request in made:
        yield replace(
            request,
            number=request.number + shift,
            session=f"{request.session}-again",
            prompt=tuple(_said_again(piece, shift) for piece in request.prompt),
            at=request.at + after_s,
            after=None if request.after is None else request.after + shift,
        )


def _said_again(piece: Piece, shift: int) -> Piece:
    return piece if piece.answer_of is None else answer_piece(piece.answer_of + shift, piece.tokens)
