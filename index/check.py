"""What must hold in the index at any time, asserted. For tests and for a running gateway that is in doubt."""

# ruff: noqa: S101 - asserting is what this module is for

from collections import Counter
from collections.abc import Iterable

from index.events import Tier
from index.holdings import Holdings
from index.node import Node
from index.tree import MAX_DEPTH_BLOCKS, Tree


def check_invariants(tree: Tree, publishers: Iterable[Holdings]) -> None:
    """Raises AssertionError if any part contradicts another. O(all blocks)."""
    publishers = list(publishers)
    _check_links(tree)
    known = set(publishers)
    for node in tree.nodes.values():
        _check_node(node, known)
    for holdings in publishers:
        _check_holdings(tree, holdings)


def check_bound(tree: Tree, publishers: Iterable[Holdings], resident: int, max_blocks: int) -> None:
    """Raises AssertionError if a bounded index holds too much, or could not give up a leaf. O(publishers + nodes)."""
    assert sum(sum(holdings.blocks) for holdings in publishers) == resident, "residencies are miscounted"
    assert resident <= max_blocks, "the bound is broken"
    for node in tree.nodes.values():
        assert node.children or (tree.leaves is not None and node in tree.leaves), "a leaf is not known to be one"


def _check_links(tree: Tree) -> None:
    """Every node is reached exactly once from the tops, and roots count their tops."""
    reached: list[Node] = []
    for first, node in tree.tops.items():
        assert node.keys[0] == first, "a top is filed under another key"
        assert node.parent is None, "a top has a parent"
    queue = list(tree.tops.values())
    while queue:
        node = queue.pop()
        reached.append(node)
        for first, child in node.children.items():
            assert child.keys[0] == first, "a child is filed under another key"
            assert child.parent is node, "a child has another parent"
            assert child.root is node.root, "a child has another root"
            queue.append(child)
    assert {node.id: node for node in reached} == tree.nodes, "nodes and links disagree"
    assert len(reached) == len(tree.nodes), "a node is reached twice"
    assert {number: node for node in reached for number in node.also} == tree.merged, (
        "a run answers for no id of its own"
    )
    assert tree.merged.keys().isdisjoint(tree.nodes), "an id names two runs"
    tops = Counter((node.root.namespace, node.root.block_size) for node in tree.tops.values())
    assert tops == {name: root.tops for name, root in tree.roots.items()}, "roots miscount their tops"
    for namespace in {name for name, _ in tree.roots}:
        sizes = tuple(sorted(size for name, size in tree.roots if name == namespace))
        assert tree.block_sizes(namespace) == sizes, "a namespace is said to have other block sizes than it has"


def _check_node(node: Node, known: set[Holdings]) -> None:
    assert node.keys, "a run is empty"
    assert node.start == (node.parent.end if node.parent else 0), "a run does not follow its parent"
    assert node.end <= MAX_DEPTH_BLOCKS, "a run is too deep for locations"
    assert node.cont is None or node.cont in node.children.values(), "the rest of a split run is not a child"
    for held in node.held:
        for holdings, bits in held.items():
            assert holdings in known, "a forgotten publisher holds blocks"
            assert 0 < bits < 1 << len(node.keys), "bits lie outside their run"
            assert node in holdings.columns, "a publisher does not know where it holds blocks"
    assert node.children or node.tail_is_held(), "nobody holds the end of a leaf"
    for tier, held in zip(Tier, node.held, strict=True):
        whole = {holdings for holdings, bits in held.items() if bits == (1 << len(node.keys)) - 1}
        assert node.whole(tier) == whole, "it is misremembered who holds a whole run"


def _check_holdings(tree: Tree, holdings: Holdings) -> None:
    located = Counter((block_hash, *_found(tree, holdings, block_hash)) for block_hash in holdings.located)
    held: Counter[tuple[int, Node, int]] = Counter()
    for node in holdings.columns:
        bits = holdings.bits_anywhere(node)
        hashes = holdings.hashes(node)
        assert tree.nodes[node.id] is node, "a publisher holds blocks of a pruned run"
        assert bits, "a publisher holds nothing in a run it remembers"
        held.update((hashes[offset], node, offset) for offset in range(len(node.keys)) if bits >> offset & 1)
    assert located == held, "locations and bits disagree"
    for tier in Tier:
        count = sum(holdings.bits(tier, node).bit_count() for node in holdings.columns)
        assert count == holdings.blocks[tier], "blocks are miscounted"
    assert holdings.private <= set(holdings.located), "a private block is not located"
    assert holdings.recent is None or holdings.recent in holdings.columns, "the recent run is one without blocks"
    holdings.located.check()
    _check_copies(tree, holdings)
    _check_waiting(holdings)


def _found(tree: Tree, holdings: Holdings, block_hash: int) -> tuple[Node, int]:
    number = holdings.located.get(block_hash)
    assert number is not None, "a block that is held is nowhere"
    node = tree.at(number)
    while (offset := holdings.find(node, block_hash)) is None:
        assert node.cont is not None, "a location is stale"
        node = node.cont
    return node, offset


def _check_copies(tree: Tree, holdings: Holdings) -> None:
    for tier, block_hash in holdings.copies.entries():
        assert block_hash in holdings.located, "copies are counted of a block not held"
        node, offset = _found(tree, holdings, block_hash)
        assert holdings.bits(tier, node) >> offset & 1, "copies are counted in a tier without the block"
    holdings.copies.check()


def _check_waiting(holdings: Holdings) -> None:
    holdings.orphans.check()
    holdings.placeholders.check()
    assert not any(block_hash in holdings.placeholders for block_hash in holdings.located), "a known block is pending"
    assert not holdings.orphans.waiting_for(list(holdings.located)), "an orphan's parent is known"
