"""Where the engine's blocks lie in the shared region.

The region has one row per *chunk*. A row holds a worker's tensors one after the other, and within a tensor
`blocks_per_chunk` pages, one per block. A transfer names blocks and chunks per cache group; a group's first block may
lie in the middle of its first chunk, and its last chunk may be filled in part.
"""

from collections.abc import Sequence


def chunk_places(
    group_sizes: Sequence[int], block_indices: Sequence[int], chunks: Sequence[int], blocks_per_chunk: int
) -> list[list[tuple[int, int]]]:
    """Where each group's consecutive blocks lie, as (chunk, block in chunk).

    `group_sizes` counts blocks per group, `block_indices` is the position in its request of each group's first block,
    and `chunks` lists the groups' chunks one group after the other. A group without blocks has no chunks.
    Raises ValueError when there are more or fewer chunks than the blocks need.
    """
    starts = [first % blocks_per_chunk for first in block_indices]
    counts = [
        -(-(start + size) // blocks_per_chunk) if size else 0 for start, size in zip(starts, group_sizes, strict=True)
    ]
    if sum(counts) != len(chunks):
        raise ValueError(f"a transfer of {sum(group_sizes)} blocks needs {sum(counts)} chunks, and names {len(chunks)}")
    places = []
    used = 0
    for start, size, count in zip(starts, group_sizes, counts, strict=True):
        positions = (divmod(at, blocks_per_chunk) for at in range(start, start + size))
        places.append([(chunks[used + chunk], slot) for chunk, slot in positions])
        used += count
    return places
