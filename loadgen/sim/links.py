"""What pulls share: each pod has one link out and one in, and a pull gets its fair share of the narrower one.

A pull of n tokens alone takes `pull_s(n)` of the profile. With others on the source's link or on the consumer's it
takes as many times longer as the fuller of the two carries, from moment to moment, where both are as quick. A link that
is slow counts its pulls so many times.
"""

from collections.abc import Callable
from functools import partial

from loadgen.sim.clock import Clock, Timer


class _Flow:
    __slots__ = ("arrived", "consumer", "left", "since", "source", "timer")

    def __init__(self, source: int, consumer: int, seconds: float, arrived: Callable[[], None], now: float) -> None:
        self.source = source
        self.consumer = consumer
        self.left = seconds  # of a link of its own
        self.since = now
        self.arrived = arrived
        self.timer: Timer | None = None


class Links:
    """All pulls that are on their way. Pods are numbers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._out: dict[int, dict[_Flow, None]] = {}  # in the order in which they began
        self._in: dict[int, dict[_Flow, None]] = {}
        self._times: dict[int, float] = {}  # pod → as many times slower, both ways

    def send(self, source: int, consumer: int, seconds: float, arrived: Callable[[], None]) -> None:
        """Move what takes so many seconds on a link of its own; O(flows that share a link with it)."""
        flow = _Flow(source, consumer, seconds, arrived, self._clock.now)
        self._progress(source, consumer)
        self._out.setdefault(source, {})[flow] = None
        self._in.setdefault(consumer, {})[flow] = None
        self._arrange(source, consumer)

    def slow(self, pod: int, times: float) -> None:
        """A pod's links take so many times longer than so far, both ways. O(flows on them and beside them)."""
        flows = [*self._out.get(pod, {}), *(flow for flow in self._in.get(pod, {}) if flow.source != pod)]
        for flow in flows:
            self._progress(flow.source, flow.consumer)
        self._times[pod] = self._times.get(pod, 1.0) * times
        for flow in flows:
            self._arrange(flow.source, flow.consumer)

    def _sharing(self, source: int, consumer: int) -> list[_Flow]:
        sending, receiving = self._out.get(source, {}), self._in.get(consumer, {})
        return [*sending, *(flow for flow in receiving if flow.source != source)]

    def _slowdown(self, flow: _Flow) -> float:
        sending = len(self._out[flow.source]) * self._times.get(flow.source, 1.0)
        return max(sending, len(self._in[flow.consumer]) * self._times.get(flow.consumer, 1.0))

    def _progress(self, source: int, consumer: int) -> None:
        now = self._clock.now
        for flow in self._sharing(source, consumer):
            flow.left -= (now - flow.since) / self._slowdown(flow)
            flow.since = now

    def _arrange(self, source: int, consumer: int) -> None:
        for flow in self._sharing(source, consumer):
            if flow.timer is not None:
                flow.timer.cancel()
            seconds = max(0.0, flow.left) * self._slowdown(flow)
            flow.timer = self._clock.after(seconds, partial(self._end, flow))

    def _end(self, flow: _Flow) -> None:
        self._progress(flow.source, flow.consumer)
        del self._out[flow.source][flow], self._in[flow.consumer][flow]
        self._arrange(flow.source, flow.consumer)
        flow.arrived()
