import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from index import snapshot
from index.block_hash import block_keys, root_key
from index.events import BlockRemoved, BlockStored, Tier
from index.radix import Applied, Cached, Publisher, RadixIndex
from index.snapshot import Loader, SnapshotError, dump, load

A, B = Publisher("a:8000", 0), Publisher("b:8000", 1)
SIZE = 16


def stored(first: int, blocks: int, parent: int | None = None, **fields: Any) -> BlockStored:
    """Blocks named by consecutive numbers; equal numbers hold equal tokens."""
    names = list(range(first, first + blocks))
    return BlockStored(names, parent, [name for name in names for _ in range(SIZE)], SIZE, **fields)


def filled() -> RadixIndex:
    """Two publishers with forks, holes, both tiers, copies, groups, a private block and something that waits."""
    index = RadixIndex()
    index.add_publisher(A, "base")
    index.add_publisher(B, "other")
    index.apply(
        A,
        [
            stored(1, 2000, group_idx=0, spec_kind="full_attention"),
            stored(5000, 10, parent=700, group_idx=0),
            stored(9000, 3, parent=777_777, group_idx=0),
            stored(1, 30, tier=Tier.CPU, group_idx=0),
            stored(1, 5, group_idx=0),
            stored(1, 3, group_idx=1),
            stored(8000, 1, group_idx=3, spec_kind="sliding_window"),
            BlockRemoved([40, 41, 1999], group_idx=0),
            BlockStored([1_000_001, 1_000_002], None, [1] * SIZE + [2] * SIZE, SIZE, group_idx=0),
        ],
    )
    index.apply(B, [stored(1, 100, lora_name="adapter"), stored(1, 1500)])
    return index


def keys(blocks: int, namespace: str = "base") -> dict[int, list[int]]:
    tokens = [name for name in range(1, blocks + 1) for _ in range(SIZE)]
    return {SIZE: block_keys(tokens, SIZE, root_key(namespace, SIZE))}


def restored(whole: bytes, **limits: int) -> RadixIndex:
    index = RadixIndex(**limits)
    load([whole], index)
    index.check_invariants()
    return index


def test_what_was_indexed_is_indexed_again() -> None:
    index = filled()
    whole = b"".join(dump(index, {A: 17}))
    again = RadixIndex(max_run_blocks=100)
    assert load([whole], again) == {A: 17, B: None}
    again.check_invariants()
    for namespace in ("base", "other", "adapter"):
        assert again.match(keys(2000, namespace)) == index.match(keys(2000, namespace))
    assert again.match(keys(2000)) == {A: Cached(39 * SIZE, 30 * SIZE, 39 * SIZE)}
    for publisher in (A, B):
        assert again.blocks(publisher) == index.blocks(publisher)
    assert again.stats().orphans == 0


def test_events_go_on_where_they_were() -> None:
    index = filled()
    again = restored(b"".join(dump(index, {})))
    events = [
        stored(6000, 5, parent=5009),
        BlockRemoved([1, 2, 5, 6, 6], group_idx=0),
        BlockRemoved([1, 1], group_idx=1),
        BlockRemoved([1_000_001], group_idx=0),
        BlockRemoved([1, 99_999], Tier.CPU, 0),
        BlockRemoved([8000], group_idx=3),
    ]
    for event in events:
        assert again.apply(A, [event]) == index.apply(A, [event])
        again.check_invariants()
    assert again.match(keys(2000)) == index.match(keys(2000))


def test_a_loaded_publisher_replaces_what_was_known_of_it_and_leaves_the_others() -> None:
    whole = b"".join(dump(filled(), {}))
    index = RadixIndex()
    other = Publisher("c:8000", 0)
    for publisher in (A, other):
        index.add_publisher(publisher, "base")
        index.apply(publisher, [stored(1, 10), stored(70_000, 5, parent=3)])
    load([whole], index)
    index.check_invariants()
    assert index.publishers() == (other, A, B)
    assert index.apply(A, [BlockRemoved([70_000])]) == Applied(unknown_removed=1)
    assert index.match(keys(20))[other] == Cached(10 * SIZE, 0, 10 * SIZE)


def test_runs_are_cut_as_the_index_they_come_into_has_them() -> None:
    short_runs = RadixIndex(max_run_blocks=3)
    short_runs.add_publisher(A, "base")
    short_runs.apply(A, [stored(1, 6), BlockRemoved([1, 2, 3])])
    index = RadixIndex()
    index.add_publisher(B, "base")
    index.apply(B, [stored(1, 6)])
    load(dump(short_runs, {}), index)
    index.check_invariants()
    assert index.apply(A, [stored(1, 3), BlockRemoved([6])]) == Applied(stored_blocks=3, removed_blocks=1)
    assert index.match(keys(6)) == {A: Cached(5 * SIZE, 0, 5 * SIZE), B: Cached(6 * SIZE, 0, 6 * SIZE)}


def test_a_snapshot_comes_in_bounded_chunks_of_few_bytes_a_block() -> None:
    index = RadixIndex()
    index.add_publisher(A, "base")
    index.apply(A, [stored(1, 20_000)])
    chunks = list(dump(index, {}))
    assert max(map(len, chunks)) < 100_000
    assert sum(map(len, chunks)) < 17 * 20_000


def test_the_index_may_change_while_a_snapshot_is_under_way() -> None:
    index = filled()
    expected = restored(b"".join(dump(index, {}))).match(keys(2000))
    positions: dict[Publisher, int | None] = {A: 1, B: 1}

    def changing() -> Iterator[bytes]:
        for number, chunk in enumerate(dump(index, positions)):
            yield chunk
            if number == 1:
                index.apply(A, [stored(1, 2000), BlockRemoved(list(range(1, 100)))])
                positions[A] = 2
                index.remove_pod(B.pod)

    again = RadixIndex()
    assert load(changing(), again) == {A: 1}
    again.check_invariants()
    assert again.match(keys(2000)) == {A: expected[A]}


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_snapshot_that_breaks_off_is_seen(data: st.DataObject) -> None:
    whole = b"".join(dump(filled(), {}))
    index = RadixIndex()
    with pytest.raises(SnapshotError):
        load([whole[: data.draw(st.integers(0, len(whole) - 1))]], index)
    index.check_invariants()


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_damaged_snapshot_is_seen(data: st.DataObject) -> None:
    whole = bytearray(b"".join(dump(filled(), {})))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    index = RadixIndex()
    with pytest.raises(SnapshotError):
        load([bytes(whole)], index)
    index.check_invariants()


def test_a_snapshot_is_taken_in_pieces_of_any_size() -> None:
    whole = b"".join(dump(filled(), {}))
    loader = Loader(index := RadixIndex())
    for at in range(0, len(whole), 1000):
        loader.feed(whole[at : at + 1000])
    loader.close()
    assert index.match(keys(2000)) == filled().match(keys(2000))


def frame(*message: Any) -> bytes:
    data = msgspec.msgpack.encode(message)
    return struct.pack("<IQ", len(data), xxh3_64_intdigest(data)) + data


HEADER = frame("header", snapshot.FORMAT, snapshot.VERSION, "little")
END = frame("end", 0)
NUMBERS = struct.pack("<3Q", 1, 2, 3)


def opening(*, runs: int = 0, private: bytes = b"", counts: Any = (), groups: Any = (0,)) -> bytes:
    return frame("publisher", ["a:8000", 0, "base", [], None, groups, counts, private, []], 1, runs)


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (b"\xff" * 20, "not a snapshot"),
        (frame("header", "something", 1, "little"), "of 'something'"),
        (frame("header", snapshot.FORMAT, 2, "little"), "version 2 is not known; known is 1"),
        (frame("header", snapshot.FORMAT, 1, "big"), "big-endian"),
        (frame("other"), "not understood"),
        (END, "out of order"),
        (HEADER + HEADER, "out of order"),
        (HEADER + frame("runs", []), "out of order"),
        (HEADER + opening(runs=1) + opening(), "out of order"),
        (HEADER + opening(runs=1) + END, "publishers missing"),
        (HEADER + frame("end", 1), "publishers missing"),
        (HEADER + END + END, "out of order"),
        (HEADER + END + b"\0", "something follows"),
        (HEADER, "breaks off"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_said_why(stream: bytes, complaint: str) -> None:
    with pytest.raises(SnapshotError, match=complaint):
        load([stream], RadixIndex())


def run(parent: int = -1, **fields: Any) -> list[Any]:
    whole = {"namespace": "base", "size": 1, "keys": NUMBERS, "gpu": b"\7", "cpu": b"", "hashes": NUMBERS} | fields
    return [parent, *whole.values()]


OTHERS = struct.pack("<3Q", 4, 5, 6)


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        ([run(0)], "before its parent"),
        ([run(-2)], "before its parent"),
        ([run(keys=b"")], "cut off"),
        ([run(keys=NUMBERS[1:])], "cut off"),
        ([run(), run(0, size=2, hashes=OTHERS)], "does not fit"),
        ([run(), run(hashes=OTHERS)], "begin alike"),
        ([run(gpu=b"\x0f")], "disagree"),
        ([run(hashes=NUMBERS[8:])], "disagree"),
        ([run(gpu=b"\3", hashes=NUMBERS[:16])], "behind what is held"),
        ([run(hashes=NUMBERS[:8] * 3)], "twice"),
        ([run(), run(0)], "twice"),
        ([run(gpu=b""), run(keys=OTHERS, cpu=b"\7")], "disagree"),
    ],
)
def test_a_record_that_contradicts_itself_changes_nothing(runs: list[Any], complaint: str) -> None:
    index = filled()
    stream = HEADER + opening(runs=len(runs)) + frame("runs", runs) + frame("end", 1)
    with pytest.raises(SnapshotError, match=complaint):
        load([stream], index)
    index.check_invariants()
    assert index.match(keys(2000)) == filled().match(keys(2000))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"private": b"\0"}, "cut off"),
        ({"private": OTHERS}, "private block is not held"),
        ({"counts": [[0, 0, 4, 1]]}, "not held"),
        ({"counts": [[0, 7, 1, 1]]}, "group not named"),
    ],
)
def test_what_a_record_says_of_blocks_must_be_of_blocks_it_holds(fields: Any, complaint: str) -> None:
    stream = HEADER + opening(runs=1, **fields) + frame("runs", [run()])
    with pytest.raises(SnapshotError, match=complaint):
        load([stream], RadixIndex())


def test_a_chain_deeper_than_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.residency.MAX_DEPTH_BLOCKS", 2)
    with pytest.raises(SnapshotError, match="too deep"):
        load([HEADER + opening(runs=1) + frame("runs", [run()])], RadixIndex())


def test_a_publisher_that_holds_nothing_is_known_again() -> None:
    index = RadixIndex()
    index.add_publisher(A, "base")
    again = restored(b"".join(dump(index, {})))
    assert again.publishers() == (A,)
    assert again.export(B) is None
