"""Which load is sent: a dataset or a trace, with times, as a schedule."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from loadgen.client.schedule import ClosedLoop, OpenLoop, Schedule, Unit
from loadgen.workload import Request
from loadgen.workload.arrivals import constant, due, faster, gamma, poisson
from loadgen.workload.datasets import dataset
from loadgen.workload.traces import TRACES, format_of

Arrival: TypeAlias = Literal["constant", "poisson", "gamma", "closed", "trace"]

_SIZES: Final = ("count", "conversations", "sessions")  # of datasets; None: there is no end
_RANDOM_TIMES: Final = "arrivals"  # so that times are drawn apart from what the dataset draws of the same seed


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A load by its parameters; the same parameters and seed give the same requests at the same times.

    `trace` names a file, `trace_format` how to read it (None: as its content suggests); without a trace requests are of
    `dataset`. Times are the load's own ("trace"; they and its pauses are divided by `speed`), those of an arrival
    process of `rate` requests a second, or those of a closed loop of `concurrency`. `burstiness` is the shape of gamma
    arrivals, as in `vllm bench serve`. ValueError for what does not go together.
    """

    dataset: str = "random"
    parameters: dict[str, Any] = {}
    trace: Path | None = None
    trace_format: str | None = None
    speed: float = 1.0
    arrival: Arrival = "trace"
    rate: float | None = None
    burstiness: float = 1.0
    concurrency: int | None = None
    unit: Unit = "requests"
    ramp_s: float = 0.0
    most: int | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if self.arrival == "closed":
            if self.concurrency is None or self.concurrency < 1:
                raise ValueError("a closed loop needs --concurrency of at least 1")
        elif self.arrival != "trace" and self.rate is None:
            raise ValueError(f"{self.arrival} arrivals need --rate")
        if self.burstiness <= 0 or self.ramp_s < 0:
            raise ValueError("--burstiness must be above 0, and --ramp not below it")

    @property
    def name(self) -> str:
        """What results call it."""
        return self.dataset if self.trace is None else self.trace.stem

    def schedule(self, requests: Iterable[Request]) -> Schedule:
        """When they are due."""
        if self.arrival == "closed":
            return ClosedLoop(requests, concurrency=self.concurrency or 1, unit=self.unit, ramp_s=self.ramp_s)
        return OpenLoop(requests, most=self.most)

    def read(self, seed: int) -> Iterator[Request]:
        """The requests of a seed, in their order. ValueError names what is wrong with parameters or a file."""
        requests = self._requests(seed)
        if self.arrival != "trace":
            requests = (replace(request, at=0.0) for request in requests)
        if (times := self._times(Random(f"{_RANDOM_TIMES} {seed}"))) is not None:
            requests = due(requests, times)
        return islice(requests, self.requests)

    def _requests(self, seed: int) -> Iterator[Request]:
        if self.trace is not None:
            return TRACES[self.trace_format or format_of(self.trace)](self.trace, speed=self.speed, seed=seed)
        made = dataset(self.dataset, self.parameters)
        if self.arrival == "trace" and self.requests is None and any(getattr(made, size, 1) is None for size in _SIZES):
            raise ValueError(f"{self.dataset} has neither times nor an end: say --rate, --concurrency or --requests")
        requests = made.requests(seed)
        return requests if self.speed == 1.0 else faster(requests, self.speed)

    def _times(self, rng: Random) -> Iterator[float] | None:
        rate = self.rate or 0.0
        match self.arrival:
            case "constant":
                return constant(rate)
            case "poisson":
                return poisson(rate, rng)
            case "gamma":
                return gamma(rate, self.burstiness**-0.5, rng)
        return None
