"""Blocks that an engine waits for although the pull that was to bring them has been given up, pure.

An engine notes what a pull brings as on its way, and whoever asks for such a block waits until it is there, without a
deadline. That a request was taken back changes nothing for its pull: vLLM goes on with it until the source is found
dead, or for 30 s and as many as 10 more until the source has confirmed that it has stopped. A pull that waits for its
lookup is not noted, but from outside the two are not told apart.

So for as long as it may hang, requests for the first block of such a pull had better go elsewhere, or bring a salt of
their own, with which they share nothing.

Time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gateway.pairs import Pair
from scorers import Rank

HANGS_S: Final = 45.0
"""How long, at most: see above; and what a poll and a step take."""

_MOST: Final = 64
"""Of one consumer. A breaker opens with the first, so they are those that were under way together."""


_NOBODY: Final[frozenset[str]] = frozenset()


class _Pull(NamedTuple):
    pair: Pair
    at: int
    key: int
    until: float


class Hanging:
    """All of them, by consumer. Falsy while there are none."""

    def __init__(self) -> None:
        self._pulls: dict[Rank, list[_Pull]] = {}

    def __bool__(self) -> bool:
        return bool(self._pulls)

    def add(self, pair: Pair, prompts: Sequence[array[int]], index: int, now: float) -> None:
        """A pull was given up that was to bring a prompt's blocks from the `index`-th on; `prompts` as in `sources`."""
        new = [_Pull(pair, index, keys[index], now + HANGS_S) for keys in prompts if index < len(keys)]
        if new:
            self._pulls[pair.consumer] = [*self._pulls.get(pair.consumer, ()), *new][-_MOST:]

    def sources(self, consumer: Rank, prompts: Sequence[array[int]], now: float) -> frozenset[str]:
        """From whom blocks hang, as pods' URLs, that a request would wait for; none: it would wait for nothing.

        `prompts`: the keys of its blocks, once in each block size. O(pulls that hang at the consumer).
        """
        pulls = self._pulls.get(consumer)
        if pulls is None:
            return _NOBODY
        if pulls[-1].until <= now:  # the last one to end
            del self._pulls[consumer]
            return _NOBODY
        return frozenset(
            pull.pair.source[0]
            for pull in pulls
            if pull.until > now and any(pull.at < len(keys) and keys[pull.at] == pull.key for keys in prompts)
        )

    def over(self, pair: Pair) -> None:
        """The pair pulls again, so what hung has come to an end. O(pulls)."""
        self._keep(lambda pull: pull.pair != pair)

    def parted(self, pod: str) -> None:
        """A pod, by URL, is another process now, and waits for nothing. O(pulls)."""
        self._keep(lambda pull: pull.pair.consumer[0] != pod)

    def keep(self, pods: Iterable[str]) -> None:
        """Only these pods, by URL, exist. O(pulls)."""
        known = set(pods)
        self._keep(lambda pull: pull.pair.consumer[0] in known)

    def _keep(self, kept: Callable[[_Pull], bool]) -> None:
        left = {consumer: list(filter(kept, pulls)) for consumer, pulls in self._pulls.items()}
        self._pulls = {consumer: pulls for consumer, pulls in left.items() if pulls}
