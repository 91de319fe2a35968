"""When requests are due: arrival processes, and what else gives a load its times.

An open loop sends at times of its own, however slow the answers are; that is what users do, and what shows a fleet
that falls behind. A closed loop sends the next request when one is answered, and so never asks for more than it gets.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from math import inf
from random import Random

from msgspec.structs import replace

from loadgen.workload import Request


def constant(rate: float) -> Iterator[float]:
    """Times in seconds, one every 1 / `rate` seconds from 0 on."""
    _check_positive(rate=rate)
    return (number / rate for number in count())


def poisson(rate: float, rng: Random) -> Iterator[float]:
    """Times in seconds with independent, exponential gaps of 1 / `rate` on average."""
    return gamma(rate, 1.0, rng)


def gamma(rate: float, cv: float, rng: Random) -> Iterator[float]:
    """Times in seconds with independent gaps of 1 / `rate` on average, whose standard deviation is `cv` times that.

    The gaps' gamma distribution has the shape 1 / `cv`², which `vllm bench serve` takes as its `--burstiness`: above a
    `cv` of 1 requests come in bursts, at 1 the process is Poisson's, below it tends to a constant one.
    """
    _check_positive(rate=rate, cv=cv)
    return _gamma(1.0 / cv**2, cv**2 / rate, rng)


def _gamma(shape: float, scale: float, rng: Random) -> Iterator[float]:
    time = 0.0
    while True:
        time += rng.gammavariate(shape, scale)
        yield time


def due(requests: Iterable[Request], times: Iterator[float]) -> Iterator[Request]:
    """Give each request that neither waits for another nor has a time of its own (above 0) the next of `times`.

    The load ends where `times` do.
    """
    for request in requests:
        if request.after is not None or request.at:
            yield request
            continue
        time = next(times, None)
        if time is None:
            return
        yield replace(request, at=time)


def closed_loop(requests: Iterable[Request], live: int) -> Iterator[Request]:
    """Let a load's sessions start when another ends, so that at most `live` go on at a time; no request keeps a time.

    A session is what follows from a request that waits for none, up to the next such request. It starts after the last
    request of the one `live` before it, so each of `live` chains runs at its own pace. Who reads ahead has to read as
    far as `live` sessions for all of them to run. O(1) a request, O(live) memory.
    """
    if live < 1:
        raise ValueError(f"live must be at least 1, not {live}")
    return _closed_loop(requests, live)


def _closed_loop(requests: Iterable[Request], live: int) -> Iterator[Request]:
    ends: deque[int] = deque(maxlen=live)
    for request in requests:
        if request.after is not None:
            ends[-1] = request.number
            yield replace(request, at=0.0)
            continue
        after = ends[0] if len(ends) == live else None
        ends.append(request.number)
        yield replace(request, at=0.0, after=after)


def faster(requests: Iterable[Request], speed: float) -> Iterator[Request]:
    """The same load in 1 / `speed` of the time: its times and its pauses are divided by `speed`."""
    _check_positive(speed=speed)
    return (replace(request, at=request.at / speed, pause=request.pause / speed) for request in requests)


def within(requests: Iterable[Request], duration_s: float) -> Iterator[Request]:
    """What is due within a load's first `duration_s` seconds.

    It ends with the first request beyond them that waits for none: these come in the order of their times. What waits
    for another is left out if its own time is beyond, and what waits for it, too.
    """
    _check_positive(duration_s=duration_s)
    return _within(requests, duration_s)


def _within(requests: Iterable[Request], duration_s: float) -> Iterator[Request]:
    left_out: set[int] = set()
    for request in requests:
        if request.at < duration_s and request.after not in left_out:
            yield request
        elif request.after is None:
            return
        else:
            left_out.add(request.number)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{name} must be above 0 and finite, not {value}")
