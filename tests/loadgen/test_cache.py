from loadgen.cache import Block, CpuTier, GpuTier
from loadgen.events import Removed


def filled(gpu: GpuTier, *names: bytes) -> list[Block]:
    blocks, _ = gpu.allocate(len(names))
    for block, name in zip(blocks, names, strict=True):
        gpu.announce(block, name)
    return blocks


def test_a_prefix_outlives_its_continuation() -> None:
    gpu = GpuTier(3)
    gpu.release(filled(gpu, b"head", b"middle", b"tail"))
    _, removed = gpu.allocate(2)
    assert removed == [Removed([b"tail"], "GPU"), Removed([b"middle"], "GPU")]
    assert len(gpu.match([b"head", b"middle"])) == 1


def test_a_block_without_hash_is_reused_first() -> None:
    gpu = GpuTier(2)
    cached = filled(gpu, b"cached")
    partial, _ = gpu.allocate(1)
    gpu.release(cached)
    gpu.release(partial)
    assert gpu.allocate(1) == (partial, [])


def test_blocks_in_use_cannot_be_reused() -> None:
    gpu = GpuTier(2)
    gpu.release(filled(gpu, b"a", b"b"))
    gpu.use(gpu.match([b"a"]))
    assert gpu.free == 1
    assert gpu.usage == 0.5
    assert not gpu.clear()


def test_two_copies_are_removed_one_by_one() -> None:
    gpu = GpuTier(2)
    first, second = filled(gpu, b"same"), filled(gpu, b"same")
    gpu.release(first)
    gpu.release(second)
    assert gpu.allocate(1)[1] == [Removed([b"same"], "GPU")]
    assert len(gpu.match([b"same"])) == 1
    assert gpu.allocate(1)[1] == [Removed([b"same"], "GPU")]
    assert gpu.match([b"same"]) == []


def test_a_cleared_pool_holds_nothing() -> None:
    gpu = GpuTier(2)
    gpu.release(filled(gpu, b"a"))
    assert gpu.clear()
    assert gpu.hashes() == set()
    assert gpu.allocate(2)[1] == []


def test_the_cpu_tier_evicts_the_least_recently_used_tail_first() -> None:
    cpu = CpuTier(3)
    cpu.store([b"a", b"b"])
    cpu.store([b"c"])
    assert cpu.store([b"d"]) == ([b"d"], [Removed([b"b"], "CPU")])
    cpu.touch([b"a"])
    assert cpu.store([b"e"]) == ([b"e"], [Removed([b"c"], "CPU")])


def test_storing_what_is_there_adds_nothing() -> None:
    cpu = CpuTier(3)
    cpu.store([b"a"])
    assert cpu.store([b"a", b"b"]) == ([b"b"], [])
    assert cpu.match([b"a", b"b", b"c"]) == 2


def test_a_store_that_cannot_fit_is_given_up() -> None:
    cpu = CpuTier(1)
    assert cpu.store([b"a", b"b"]) == ([], [])
    assert cpu.hashes() == set()
