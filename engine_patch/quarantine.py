"""Memory that a peer may still write to.

A pull is a write by the source into chunks that the consumer has set aside. The consumer cannot call it back: whoever
gives up waiting and hands the chunks to somebody else finds them overwritten when the source goes on, and answers with
another prompt's KV. So a chunk whose pull was given up is kept out of use until the source can write no more:

* it said that the transfer is done;
* it said that the transfer failed, or acknowledged its abort, and a little time has passed: writes may still land;
* it is gone, since its port refuses or another process answers there, and a little time has passed;
* it has let go of the session in which it pulled, and greeted anew, and a little time has passed;
* or so much time has passed that a transfer which is still under way has been cut by its transport.

Chunks are named by their number in the region. `held` ones have left the cache and are in nobody's hands.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

LONGEST_S = 300.0
"""A stopped process may go on after any time. A broken link is noticed by every transport long before this."""

LET_GO_S = 5.0
"""A source that ends a session or a transfer drops it, and what had been handed to the hardware still lands."""


@dataclass(slots=True)
class _Pull:
    peer: str
    until: float
    chunks: set[int]
    held: set[int] = field(default_factory=set)


class Quarantine:
    """The chunks of pulls that were given up, by pull."""

    def __init__(self) -> None:
        self._pulls: dict[int, _Pull] = {}
        self._pull_of: dict[int, int] = {}

    def put(self, pull: int, peer: str, chunks: Iterable[int], now: float) -> None:
        """Keep the pull's chunks out of use from the moment on that they are freed."""
        self._pulls[pull] = _Pull(peer, now + LONGEST_S, set(chunks))
        for chunk in self._pulls[pull].chunks:
            self._pull_of[chunk] = pull

    def hold(self, chunk: int) -> bool:
        """Whether a chunk that is being freed stays out of use; it is held then, until a release returns it."""
        pull = self._pull_of.get(chunk)
        if pull is None:
            return False
        self._pulls[pull].held.add(chunk)
        return True

    def release(self, pull: int) -> set[int]:
        """The source is through with the pull: the chunks that may be used again. Unknown pulls have none."""
        ended = self._pulls.pop(pull, None)
        if ended is None:
            return set()
        for chunk in ended.chunks:
            del self._pull_of[chunk]
        return ended.held

    def ended(self, pull: int, now: float) -> None:
        """The source has dropped the pull, and begins no more writes for it."""
        if (kept := self._pulls.get(pull)) is not None:
            kept.until = min(kept.until, now + LET_GO_S)

    def let_go(self, peer: str, now: float, *, but: Container[int] = ()) -> None:
        """The source is gone, or has begun a new session after those of its pulls here; `but` these."""
        for pull, kept in self._pulls.items():
            if kept.peer == peer and pull not in but:
                self.ended(pull, now)

    def expire(self, now: float) -> set[int]:
        """What may be used again because of the time that has passed."""
        return self._release_all(pull for pull, kept in self._pulls.items() if kept.until <= now)

    def clear(self) -> None:
        """All chunks were taken from everybody: there is nothing to return."""
        self._pulls.clear()
        self._pull_of.clear()

    def peers(self) -> set[str]:
        """The sources that may still write."""
        return {kept.peer for kept in self._pulls.values()}

    def __contains__(self, pull: int) -> bool:
        return pull in self._pulls

    def __len__(self) -> int:
        """How many chunks are kept out of use."""
        return sum(len(kept.held) for kept in self._pulls.values())

    def _release_all(self, pulls: Iterable[int]) -> set[int]:
        return {chunk for pull in list(pulls) for chunk in self.release(pull)}
