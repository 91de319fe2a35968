"""The index against a model that stores every block singly and answers by scanning."""

from collections import Counter
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from index.block_hash import block_keys, root_key, salt_extra
from index.events import AllBlocksCleared, BlockRemoved, BlockStored, Tier
from index.radix import Cached, Publisher, RadixIndex
from index.snapshot import dump, load

PUBLISHERS = [Publisher("a:1", 0), Publisher("a:1", 1), Publisher("b:1", 0)]
MODEL = "base"
KINDS = {0: "full_attention", 1: "mla_attention", 7: "sliding_window"}
DEEPEST = 9


class Chain(NamedTuple):
    """A prompt, as blocks told apart by one number each."""

    lora: str | None
    block_size: int
    salt: str | None
    contents: tuple[int, ...]

    def tokens(self) -> list[int]:
        return [content for content in self.contents for _ in range(self.block_size)]

    def prefix(self, depth: int) -> "Chain":
        return self._replace(contents=self.contents[:depth])

    def keys(self) -> list[int]:
        extras = {0: salt_extra(self.salt)} if self.salt else None
        return block_keys(self.tokens(), self.block_size, root_key(self.lora or MODEL, self.block_size), extras)


class Waiting(NamedTuple):
    parent: Chain | None
    block: Chain
    tier: Tier
    group: int | None


class Model:
    """One publisher: copies of known blocks, and copies that wait, each block for itself."""

    def __init__(self) -> None:
        self.copies: Counter[tuple[Chain, Tier, int | None]] = Counter()
        self.waiting: list[Waiting] = []
        self.cancelled: Counter[tuple[Chain, Tier, int | None]] = Counter()
        self.placeholders: Counter[tuple[Chain, Tier, int | None]] = Counter()

    def holds(self, block: Chain, tier: Tier) -> bool:
        return any(count and (chain, at) == (block, tier) for (chain, at, _), count in self.copies.items())

    def knows(self, block: Chain) -> bool:
        return any(self.holds(block, tier) for tier in Tier)

    def store(self, blocks: list[Chain], tier: Tier, group: int | None) -> None:
        for block in blocks:
            parent = block.prefix(len(block.contents) - 1)
            self.waiting.append(Waiting(parent if parent.contents else None, block, tier, group))
        while ready := [item for item in self.waiting if self._is_ready(item)]:
            for item in ready:
                self.waiting.remove(item)
                self.copies[item.block, item.tier, item.group] += 1
        for copy in [copy for copy in self.placeholders if self.knows(copy[0])]:
            self.copies[copy] += self.placeholders.pop(copy)
        waiting = {(item.block, item.tier, item.group) for item in self.waiting}
        for copy in [copy for copy in self.cancelled if copy not in waiting]:
            self.copies[copy] -= self.cancelled.pop(copy)

    def _is_ready(self, item: Waiting) -> bool:
        return item.parent is None or self.knows(item.block) or self.knows(item.parent)

    def placeholder(self, block: Chain, tier: Tier, group: int | None) -> None:
        into = self.copies if self.knows(block) else self.placeholders
        into[block, tier, group] += 1

    def remove(self, copy: tuple[Chain, Tier, int | None]) -> None:
        waiting = Counter((item.block, item.tier, item.group) for item in self.waiting)
        for place in (self.copies, self.placeholders):
            if place[copy] > 0:
                place[copy] -= 1
                place += Counter()
                return
        if self.cancelled[copy] < waiting[copy]:
            self.cancelled[copy] += 1

    def clear(self, tier: Tier) -> None:
        for place in (self.copies, self.placeholders):
            for copy in [copy for copy in place if copy[1] is tier]:
                del place[copy]
        for item in self.waiting:
            if item.tier is tier:
                copy = (item.block, item.tier, item.group)
                self.cancelled[copy] = sum(copy == (o.block, o.tier, o.group) for o in self.waiting)

    def drop_what_waits(self) -> None:
        self.waiting.clear()
        self.cancelled.clear()
        self.placeholders.clear()

    def count(self, tier: Tier) -> int:
        return len({block for (block, at, _), count in self.copies.items() if at is tier and count > 0})

    def cached(self, prompt: Chain) -> Cached:
        depths = range(1, len(prompt.contents) + 1)
        lengths = []
        for tiers in ([Tier.GPU], [Tier.CPU], [Tier.GPU, Tier.CPU]):
            length = 0
            for tier in tiers:
                for depth in depths:
                    if depth == length + 1 and self.holds(prompt.prefix(depth), tier):
                        length = depth
            lengths.append(length * prompt.block_size)
        return Cached(*lengths)


chains = st.builds(
    Chain,
    st.sampled_from([None, None, "adapter"]),
    st.sampled_from([2, 2, 3]),
    st.sampled_from([None, None, "salt"]),
    st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=DEEPEST).map(tuple),
)
publishers = st.sampled_from(PUBLISHERS)
tiers = st.sampled_from(list(Tier))
groups = st.sampled_from([0, 0, 0, 1])


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[Chain, int] = {}
        self.models: dict[Publisher, Model] = {}
        self.recent: dict[Chain, None] = {}

    @initialize(max_run=st.sampled_from([2, 3, 5]))
    def start(self, max_run: int) -> None:
        self.index = RadixIndex(max_run_blocks=max_run)
        for publisher in PUBLISHERS:
            self.add(publisher)

    def add(self, publisher: Publisher) -> None:
        self.index.add_publisher(publisher, MODEL)
        self.models.setdefault(publisher, Model())

    def name(self, block: Chain) -> int:
        """The engine's hash of a block: one number per content."""
        return self.hashes.setdefault(block, 1000 + len(self.hashes))

    def note(self, chain: Chain) -> None:
        self.recent[chain] = None
        if len(self.recent) > 6:
            del self.recent[next(iter(self.recent))]

    def event(self, chain: Chain, start: int, end: int, tier: Tier, group: int) -> BlockStored:
        extra_keys: list[Any] | None = None
        if tier is Tier.GPU and (chain.lora or chain.salt):
            extra_keys = [[chain.lora] if chain.lora else None for _ in range(start, end)]
            if chain.salt and not start:
                extra_keys[0] = [*(extra_keys[0] or []), chain.salt]
        return BlockStored(
            [self.name(chain.prefix(depth)) for depth in range(start + 1, end + 1)],
            self.name(chain.prefix(start)) if start else None,
            chain.prefix(end).tokens()[start * chain.block_size :],
            chain.block_size,
            tier,
            chain.lora,
            extra_keys,
            group,
            KINDS[group],
        )

    @rule(publisher=publishers, chain=chains, tier=tiers, group=groups, data=st.data())
    def store(self, publisher: Publisher, chain: Chain, tier: Tier, group: int, data: st.DataObject) -> None:
        end = len(chain.contents)
        start = data.draw(st.integers(0, end - 1) | st.just(0))
        model = self.models[publisher]
        if tier is Tier.CPU and chain.salt and not start and not model.knows(chain.prefix(1)):
            tier = Tier.GPU
        self.index.apply(publisher, [self.event(chain, start, end, tier, group)])
        model.store([chain.prefix(depth) for depth in range(start + 1, end + 1)], tier, group)
        self.note(chain)

    @rule(publisher=publishers, chain=chains, cut=st.integers(1, DEEPEST - 1), group=groups)
    def store_child_before_parent(self, publisher: Publisher, chain: Chain, cut: int, group: int) -> None:
        end = len(chain.contents)
        cut = min(cut, end - 1)
        parts = [(cut, end), (0, cut)] if cut else [(0, end)]
        self.index.apply(publisher, [self.event(chain, *part, Tier.GPU, group) for part in parts])
        for start, stop in parts:
            blocks = [chain.prefix(depth) for depth in range(start + 1, stop + 1)]
            self.models[publisher].store(blocks, Tier.GPU, group)
        self.note(chain)

    @rule(publisher=publishers, chain=chains)
    def store_of_a_masked_group_is_ignored(self, publisher: Publisher, chain: Chain) -> None:
        self.index.apply(publisher, [self.event(chain, 0, len(chain.contents), Tier.GPU, 7)])
        self.index.apply(publisher, [BlockRemoved([self.name(chain)], Tier.GPU, 7)])

    @rule(publisher=publishers, chain=chains, group=groups)
    def offload_without_description(self, publisher: Publisher, chain: Chain, group: int) -> None:
        self.index.apply(publisher, [BlockStored([self.name(chain)], None, [], 0, Tier.CPU, group_idx=group)])
        self.models[publisher].placeholder(chain, Tier.CPU, group)
        self.note(chain)

    @precondition(lambda self: self.recent)
    @rule(publisher=publishers, tier=tiers, group=groups, data=st.data())
    def remove(self, publisher: Publisher, tier: Tier, group: int, data: st.DataObject) -> None:
        chain = data.draw(st.sampled_from(list(self.recent)))
        depths = range(len(chain.contents), 0, -1)
        blocks = [chain.prefix(depth) for depth in data.draw(st.lists(st.sampled_from(depths), min_size=1, max_size=6))]
        self.index.apply(publisher, [BlockRemoved([self.name(block) for block in blocks], tier, group)])
        for block in blocks:
            self.models[publisher].remove((block, tier, group))

    @rule(publisher=publishers)
    def reset_gpu(self, publisher: Publisher) -> None:
        self.index.apply(publisher, [AllBlocksCleared()])
        self.models[publisher].clear(Tier.GPU)

    @rule(publisher=publishers, tier=st.sampled_from([None, Tier.CPU]))
    def clear(self, publisher: Publisher, tier: Tier | None) -> None:
        self.index.clear(publisher, tier)
        if tier is None:
            self.models[publisher] = Model()
        else:
            self.models[publisher].clear(tier)

    @rule(max_run=st.sampled_from([2, 3, 5]), size=st.integers(1, 500))
    def restart_from_a_snapshot(self, max_run: int, size: int) -> None:
        """What waits is not in a snapshot."""
        whole = b"".join(dump(self.index, {}))
        self.index = RadixIndex(max_run_blocks=max_run)
        assert set(load((whole[at : at + size] for at in range(0, len(whole), size)), self.index)) == set(self.models)
        for model in self.models.values():
            model.drop_what_waits()

    @rule(pod=st.sampled_from(["a:1", "b:1"]))
    def replace_pod(self, pod: str) -> None:
        self.index.remove_pod(pod)
        for publisher in [publisher for publisher in PUBLISHERS if publisher.pod == pod]:
            del self.models[publisher]
            self.add(publisher)

    @rule(chain=chains)
    def match(self, chain: Chain) -> None:
        expected = {publisher: model.cached(chain) for publisher, model in self.models.items()}
        found = self.index.match({chain.block_size: chain.keys()})
        assert found == {publisher: cached for publisher, cached in expected.items() if cached.gpu or cached.cpu}

    @invariant()
    def agrees(self) -> None:
        if not self.models:
            return
        self.index.check_invariants()
        for publisher, model in self.models.items():
            assert self.index.blocks(publisher) == {tier: model.count(tier) for tier in Tier}
        for chain in self.recent:
            self.match(chain)


TestIndexAgainstModel = IndexMachine.TestCase
TestIndexAgainstModel.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestIndexAgainstModel.pytestmark = [pytest.mark.timeout(300)]
