"""What pulls are bringing to publishers, until it is there.

An engine moves blocks once. Who wants some that are on their way to it for another request waits for these, and they
cost no link anything more: so the next request with the same beginning is soonest where a pull of it is under way.

A pull counts from its request's placement to the first byte, or to its failure: nothing else ends it, since the events
that tell of its blocks come one by one. What it brings is found by the prompt's first block. Where a whole fleet's
prompts begin alike, all pulls are looked at for that, and so only the newest of them: a pull that is not found there is
waited for by the engine all the same, and only not known to be.

Pure: time is an argument, in seconds of any clock that does not go back.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from index.holdings import Publisher
from index.node import common_length

_LOOKED_AT: Final = 64


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
        self._by_first: dict[int, dict[Pulled, array[int]]] = {}

    def __len__(self) -> int:
        """How many first blocks are on their way. O(1)."""
        return len(self._by_first)

    def begun(self, publisher: Publisher, prompts: "Iterable[array[int]]", arrival: Arrival) -> Pulled:
        """A pull is named on a request that was placed on the publisher. O(block sizes)."""
        pulled = Pulled(publisher, tuple(keys for keys in prompts if keys), arrival)
        for keys in pulled.prompts:
            self._by_first.setdefault(keys[0], {})[pulled] = keys
        return pulled

    def ended(self, pulled: Pulled) -> None:
        """Its blocks are there, or will not come. O(block sizes)."""
        prompts, pulled.prompts = pulled.prompts, ()
        for keys in prompts:
            same = self._by_first[keys[0]]
            del same[pulled]
            if not same:
                del self._by_first[keys[0]]

    def match(self, prompts: Mapping[int, Sequence[int]]) -> dict[Publisher, Arrival]:
        """What is coming of a prompt to each publisher: the most of it, and of as much what is due first.

        `prompts` as in `Expected.match`. O(log(blocks)) for each of so many pulls of the same first block.
        """
        found: dict[Publisher, tuple[int, float, Arrival]] = {}
        for block_size, keys in prompts.items():
            same = self._by_first.get(keys[0]) if keys else None
            for pulled, own in islice(reversed(same.items()), _LOOKED_AT) if same else ():
                arrival, known = pulled.arrival, found.get(pulled.publisher)
                if known is not None and arrival.tokens < known[0]:
                    continue
                tokens = common_length(own, 0, keys, 0) * block_size
                tokens = min(tokens, arrival.tokens)
                if known is None or tokens > known[0] or (tokens == known[0] and arrival.due < known[1]):
                    found[pulled.publisher] = tokens, arrival.due, arrival
        return {publisher: arrival._replace(tokens=tokens) for publisher, (tokens, _, arrival) in found.items()}
