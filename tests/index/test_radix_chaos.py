"""Events that no sane engine sends: nothing raises, and the record never contradicts itself."""

from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import block_keys, root_key
from index.events import AllBlocksCleared, BlockRemoved, BlockStored, DecodeError, Event, Tier, decode_batch
from index.radix import Applied, Publisher, RadixIndex

PUBLISHERS = [Publisher("a:1", 0), Publisher("b:1", 0)]

few_hashes = st.integers(0, 9)
tiers = st.sampled_from(list(Tier))
groups = st.sampled_from([None, 0, 0, 1, 2])
kinds = st.sampled_from([None, None, "full_attention", "sliding_window"])


@st.composite
def stores(draw: st.DrawFn) -> BlockStored:
    hashes = draw(st.lists(few_hashes, max_size=6, unique=True))
    size = draw(st.sampled_from([1, 1, 1, 2]))
    tokens = draw(st.lists(st.integers(0, 1), min_size=len(hashes) * size, max_size=len(hashes) * size))
    extra_keys: list[Any] | None = draw(st.none() | st.just([["salt"] if number == 0 else None for number in hashes]))
    parent = draw(st.none() | few_hashes)
    return BlockStored(hashes, parent, tokens, size, draw(tiers), None, extra_keys, draw(groups), draw(kinds))


placeholders = st.builds(
    lambda hashes, tier, group: BlockStored(hashes, None, [], 0, tier, group_idx=group),
    st.lists(few_hashes, max_size=2),
    tiers,
    groups,
)
removals = st.builds(BlockRemoved, st.lists(few_hashes, max_size=6), tiers, groups)
events: st.SearchStrategy[Event] = stores() | stores() | placeholders | removals | st.builds(AllBlocksCleared)
deliveries = st.lists(st.tuples(st.sampled_from(PUBLISHERS), events), min_size=5, max_size=40)


@settings(max_examples=150, deadline=None)
@given(deliveries, st.integers(1, 4))
def test_no_stream_of_events_brings_the_record_out_of_order(
    stream: list[tuple[Publisher, Event]], max_run: int
) -> None:
    index = RadixIndex(max_run_blocks=max_run, orphan_limit_blocks=8, placeholder_limit_blocks=2)
    for publisher in PUBLISHERS:
        index.add_publisher(publisher, "base")
    for publisher, event in stream:
        index.apply(publisher, [event])
        index.check_invariants()
    for publisher in PUBLISHERS:
        index.remove_pod(publisher.pod)
        index.check_invariants()
    stats = index.stats()
    assert (stats.nodes, stats.publishers, sum(stats.blocks.values())) == (0, 0, 0)


def wire_hashes(form: str) -> st.SearchStrategy[Any]:
    numbers = st.integers(0, 9)
    return numbers if form == "int" else numbers.map(lambda number: number.to_bytes(32, "big"))


@st.composite
def wire_events(draw: st.DrawFn) -> object:
    """Events about the very blocks another publisher holds, right, wrong and absurd."""
    absurd = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=3)
    absurd |= st.lists(absurd, max_size=3)
    hashes = wire_hashes(draw(st.sampled_from(["int", "int", "bytes"])))
    fields = {
        "block_hashes": draw(st.lists(hashes, max_size=6)),
        "parent_block_hash": draw(st.none() | hashes),
        "token_ids": draw(st.lists(st.integers(0, 3), max_size=6)),
        "block_size": draw(st.sampled_from([0, 1, 1, 1, 2])),
        "lora_id": draw(st.sampled_from([None, None, 1])),
        "medium": draw(st.sampled_from([None, "GPU", "CPU", "STORAGE"])),
        "lora_name": draw(st.sampled_from([None, None, "adapter"])),
        "extra_keys": draw(st.none() | st.lists(st.none() | st.just(["salt"]), max_size=6)),
        "group_idx": draw(groups),
        "kv_cache_spec_kind": draw(kinds),
    }
    if draw(st.booleans()):
        fields[draw(st.sampled_from(sorted(fields)))] = draw(absurd)
    kind = draw(st.sampled_from(["BlockStored", "BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared"]))
    if kind == "BlockRemoved":
        fields = {name: fields[name] for name in ("block_hashes", "medium", "group_idx")}
    if draw(st.booleans()):
        return {"type": kind, **fields}
    return [kind, *fields.values()][: draw(st.integers(2, 11))]


@settings(max_examples=200, deadline=None)
@given(st.lists(wire_events(), max_size=12), st.binary(max_size=3), st.integers(0, 10_000), st.integers(1, 4))
def test_whatever_a_publisher_sends_another_keeps_what_it_holds(
    sent: list[object], damage: bytes, at: int, max_run: int
) -> None:
    index = RadixIndex(max_run_blocks=max_run, orphan_limit_blocks=8, placeholder_limit_blocks=2)
    for publisher in PUBLISHERS:
        index.add_publisher(publisher, "base")
    liar, honest = PUBLISHERS
    prompts = [[0, 1, 2, 3], [0, 1, 1], [2, 2]]
    names = iter(range(1, 10))
    for prompt in prompts:
        index.apply(honest, [BlockStored([next(names) for _ in prompt], None, prompt, 1)])
    index.apply(honest, [BlockStored([1, 2], None, [0, 1], 1, Tier.CPU)])
    chains = [block_keys(prompt, 1, root_key("base", 1)) for prompt in prompts]
    before = [index.match({1: chain})[honest] for chain in chains]
    whole = bytearray(msgspec.msgpack.encode([1.0, sent, 0]))
    at %= len(whole)
    whole[at : at + len(damage)] = damage
    for payload in (msgspec.msgpack.encode([1.0, sent, 0]), bytes(whole)):
        with suppress(DecodeError):
            index.apply(liar, decode_batch(payload).events)
        index.check_invariants()
        assert [index.match({1: chain})[honest] for chain in chains] == before
    assert index.apply(honest, [BlockRemoved([1, 2, 3, 4, 5, 6, 7, 8, 9])]) == Applied(removed_blocks=9)


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
scalars |= st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=4))
extra_values = st.lists(scalars | st.lists(scalars, max_size=2), max_size=3)


@settings(deadline=None)
@given(
    st.lists(st.none() | extra_values, min_size=2, max_size=2), st.none() | st.text(), st.none() | st.integers(-9, 9)
)
def test_whatever_a_decoded_block_depends_on_can_be_applied(
    extra_keys: list[Any], lora_name: str | None, group: int | None
) -> None:
    event = ["BlockStored", [1, 2], None, [5, 6], 1, None, "GPU", lora_name, extra_keys, group]
    batch = decode_batch(msgspec.msgpack.encode([1.0, [event]]))
    index = RadixIndex()
    index.add_publisher(PUBLISHERS[0], "base")
    assert index.apply(PUBLISHERS[0], batch.events).stored_blocks == 2 * len(batch.events)
    index.check_invariants()
