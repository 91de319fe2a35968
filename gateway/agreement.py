"""Whether pods can pull from each other at all: pure.

Pods find each other's blocks by the engine's own hash. Pods with another block size, hash seed, hash algorithm or model
path give the same content another hash, and then every pull between them is a miss, silently. Events show it: they name
content and hash together. So the first block of every prompt is compared across the pods of a model: same content and
same block size must come with the same hash.

Engines refuse each other for more than that. What a pod says of itself when it comes up is compared too, fact by fact,
as far as two pods of a model say the same kind of thing: they cannot pull from each other if they differ in one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from index import BlockStored, Publisher, Tier, block_keys, root_key
from index.block_hash import event_extras
from index.events import INDEXED_KINDS

Matter = str
"""What two pods differ in: `block-size`, `hash`, or what a fact is called."""
_REMEMBERED_PROMPTS = 4096  # first blocks: few prompts begin differently where a fleet has a system prompt


class Disagreement(NamedTuple):
    """Two pods that cannot pull from each other, and in what they differ. `pod` < `peer`."""

    pod: str
    peer: str
    matter: Matter


class Agreement:
    """What has been compared so far. `changed` is called when other pods than before differ."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._facts: dict[str, dict[str, Mapping[str, object]]] = {}  # model → pod → what it said of itself
        self._sizes: dict[str, dict[str, int]] = {}  # model → pod → block size
        self._hashes: OrderedDict[int, dict[str, int]] = OrderedDict()  # content → pod → engine's hash
        self._found: set[Disagreement] = set()

    def observe(self, publisher: Publisher, model: str, event: BlockStored) -> list[Disagreement]:
        """Compare a stored event with what other pods of the model said; what is new. O(pods of the model)."""
        if event.parent_block_hash is not None or event.tier is not Tier.GPU or not event.block_size:
            return []
        found = self._compare_sizes(publisher.pod, model, event.block_size)
        content = _first_block(event, model)
        if content is not None:
            found |= self._compare_hashes(publisher.pod, content, event.block_hashes[0])
        return self._news(found)

    def identified(self, pod: str, model: str, facts: Mapping[str, object]) -> list[Disagreement]:
        """Compare what a pod says of itself with what others of the model said; what is new. O(pods of the model)."""
        others = self._facts.setdefault(model, {})
        others[pod] = facts
        return self._news(
            {
                _between(pod, peer, matter)
                for peer, said in others.items()
                for matter in facts.keys() & said.keys()
                if facts[matter] != said[matter]
            }
        )

    @property
    def found(self) -> frozenset[Disagreement]:
        """All pods that differ."""
        return frozenset(self._found)

    def forget(self, pod: str) -> None:
        """The pod is gone; it may come back as another. O(what is remembered)."""
        for sizes in self._sizes.values():
            sizes.pop(pod, None)
        for said in self._facts.values():
            said.pop(pod, None)
        for hashes in self._hashes.values():
            hashes.pop(pod, None)
        left = {each for each in self._found if pod not in (each.pod, each.peer)}
        if left != self._found:
            self._found = left
            self._changed()

    def of(self, pod: str) -> dict[str, Matter]:
        """The peers that the pod cannot pull from. O(disagreements)."""
        return {
            (each.peer if each.pod == pod else each.pod): each.matter
            for each in self._found
            if pod in (each.pod, each.peer)
        }

    def _news(self, found: set[Disagreement]) -> list[Disagreement]:
        new = found - self._found
        if new:
            self._found |= new
            self._changed()
        return sorted(new)

    def _compare_sizes(self, pod: str, model: str, size: int) -> set[Disagreement]:
        sizes = self._sizes.setdefault(model, {})
        if sizes.get(pod) == size:
            return set()
        sizes[pod] = size
        return {_between(pod, peer, "block-size") for peer, other in sizes.items() if other != size}

    def _compare_hashes(self, pod: str, content: int, block_hash: int) -> set[Disagreement]:
        hashes = self._hashes.get(content)
        if hashes is None:
            hashes = self._hashes[content] = {}
            if len(self._hashes) > _REMEMBERED_PROMPTS:
                self._hashes.popitem(last=False)
        elif hashes.get(pod) == block_hash:
            return set()
        hashes[pod] = block_hash
        return {_between(pod, peer, "hash") for peer, other in hashes.items() if other != block_hash}


def _first_block(event: BlockStored, model: str) -> int | None:
    """The key of what the event's first block holds; None where the event does not tell all of it."""
    whole = event.spec_kind in INDEXED_KINDS or (event.spec_kind is None and event.group_idx is None)
    if not whole or not event.block_hashes or len(event.token_ids) < event.block_size:
        return None
    extras = event_extras(event.extra_keys[:1], event.lora_name) if event.extra_keys else None
    root = root_key(event.lora_name or model, event.block_size)
    return block_keys(event.token_ids[: event.block_size], event.block_size, root, extras)[0]


def _between(one: str, other: str, matter: Matter) -> Disagreement:
    return Disagreement(min(one, other), max(one, other), matter)
