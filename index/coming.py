"""What pulls are bringing to publishers, until it is there.

An engine moves blocks once. Who wants some that are on their way to it for another request waits for these, and they
cost no link anything more: so the next request with the same beginning is soonest where a pull of it is under way.

A pull counts from its request's placement to the first byte, or to its failure: nothing else ends it, since the events
that tell of its blocks come one by one. What it brings is found by the prompt's first block, and there are as many
pulls of one first block as there are publishers that do not have it.

Pure: time is an argument, in seconds of any clock that does not go back.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from index.holdings import Publisher
from index.node import common_length


class Arrival(NamedTuple):
    """So many tokens of a prompt come to a publisher; `source`: URL and rank of where they come from."""

    tokens: int
    due: float
    source: tuple[str, int]


class Pulled:
    """One pull. `prompts` are the chained keys of its request's prompt, in each block size."""

    __slots__ = ("arrival", "prompts", "publisher")

    def __init__(self, publisher: Publisher, prompts: "tuple[array[int], ...]", arrival: Arrival) -> None:
        self.publisher = publisher
        self.prompts = prompts
        self.arrival = arrival


class Coming:
    """The pulls under way. What is said of one twice, or after its end, changes nothing."""

    def __init__(self) -> None:
        self._by_first: dict[int, list[Pulled]] = {}

    def __len__(self) -> int:
        """How many first blocks are on their way. O(1)."""
        return len(self._by_first)

    def begun(self, publisher: Publisher, prompts: "Iterable[array[int]]", arrival: Arrival) -> Pulled:
        """A pull is named on a request that was placed on the publisher. O(block sizes)."""
        pulled = Pulled(publisher, tuple(keys for keys in prompts if keys), arrival)
        for keys in pulled.prompts:
            self._by_first.setdefault(keys[0], []).append(pulled)
        return pulled

    def ended(self, pulled: Pulled) -> None:
        """Its blocks are there, or will not come. O(pulls of the same first block)."""
        prompts, pulled.prompts = pulled.prompts, ()
        for keys in prompts:
            same = self._by_first[keys[0]]
            same.remove(pulled)
            if not same:
                del self._by_first[keys[0]]

    def match(self, prompts: Mapping[int, Sequence[int]]) -> dict[Publisher, Arrival]:
        """What is coming of a prompt to each publisher: the most of it, and of as much what is due first.

        `prompts` as in `Expected.match`. O(pulls of the same first block * log(blocks)).
        """
        found: dict[Publisher, Arrival] = {}
        for block_size, keys in prompts.items():
            for pulled in self._by_first.get(keys[0], ()) if keys else ():
                shared = max(common_length(own, 0, keys, 0) for own in pulled.prompts if own[0] == keys[0])
                arrival = pulled.arrival
                tokens = min(shared * block_size, arrival.tokens)
                known = found.get(pulled.publisher)
                if known is None or (tokens, -arrival.due) > (known.tokens, -known.due):
                    found[pulled.publisher] = arrival._replace(tokens=tokens)
        return found
