"""What is cached where: pure, exact, and fast under any stream of KV-cache events."""

from index.audit import Audit, Counted
from index.block_hash import Media, block_keys, media_extras, root_key, salt_extra
from index.coming import Arrival, Coming, Pulled
from index.events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, DecodeError, Event, Tier, decode_batch
from index.expected import Expectation, Expected
from index.holdings import Publisher
from index.match import Cached
from index.radix import Applied, IndexStats, RadixIndex
from index.sequence import Action, Decision, Sequence
from index.snapshot import Loader, SnapshotError, dump, load
from index.trust import Trust
from index.turnover import Turnover

__all__ = [
    "Action",
    "AllBlocksCleared",
    "Applied",
    "Arrival",
    "Audit",
    "Batch",
    "BlockRemoved",
    "BlockStored",
    "Cached",
    "Coming",
    "Counted",
    "Decision",
    "DecodeError",
    "Event",
    "Expectation",
    "Expected",
    "IndexStats",
    "Loader",
    "Media",
    "Publisher",
    "Pulled",
    "RadixIndex",
    "Sequence",
    "SnapshotError",
    "Tier",
    "Trust",
    "Turnover",
    "block_keys",
    "decode_batch",
    "dump",
    "load",
    "media_extras",
    "root_key",
    "salt_extra",
]
