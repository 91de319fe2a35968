"""One request inside an engine: what it has computed, what it holds, and what its client has been told."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence as Run
from enum import Enum
from typing import NamedTuple

from loadgen.answer import Answer
from loadgen.cache import Block
from loadgen.events import Lora
from loadgen.hashing import BlockHasher, ExtraKeys


class State(Enum):
    """Where a sequence is. Loading: its blocks come from the CPU tier or a peer, and it does not hold up the queue."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class KvSource(NamedTuple):
    """The peer a request names to pull from."""

    kv_request_id: str
    host: str
    port: str


class Cached(NamedTuple):
    """Prompt tokens that were not computed, by where their blocks came from."""

    device: int = 0
    host: int = 0
    p2p: int = 0


class Sequence:
    """A prompt, the answer it will get, and its progress; ``tokens`` grows by each emitted token.

    ``salt`` and ``lora`` (with ``lora_path``) enter the block hashes: the same tokens under another salt are other
    blocks.
    """

    def __init__(
        self,
        prompt: Run[int],
        answer: Answer,
        hasher: BlockHasher,
        *,
        source: KvSource | None = None,
        salt: str | None = None,
        lora: Lora | None = None,
        lora_path: str = "",
    ) -> None:
        self.prompt_tokens = len(prompt)
        self.tokens = list(prompt)
        self.answer = answer
        self.source = source
        self.lora = lora
        self.state = State.WAITING
        self.blocks: list[Block] = []
        self.hashes: list[bytes] = []
        self.computed = 0
        self.announced = 0  # blocks findable on the GPU
        self.offloaded = 0  # blocks handed to the CPU tier
        self.charged = False  # its fixed cost has been paid
        self.loaded = False
        self.landed = Cached()
        self.landed_end = 0  # blocks it has on the GPU thanks to a load; 0: a load brought none
        self.cached: Cached | None = None
        self._hasher = hasher
        self._salt = salt
        self._lora_path = lora_path
        self._news = asyncio.Event()
        self.hash_full_blocks()

    @property
    def emitted(self) -> int:
        """Answer tokens that the client may have."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def longest_hit(self) -> int:
        """Blocks to look for on the GPU: where a load ended, else those before the last token."""
        return self.landed_end or (len(self.tokens) - 1) // self._hasher.block_size

    def hash_full_blocks(self) -> None:
        """Hash the blocks that became full."""
        self._hasher.extend(self.hashes, self.tokens, self._extra_keys)

    def _extra_keys(self, block: int) -> ExtraKeys | None:
        lora = (("lora", self.lora.name, self._lora_path),) if self.lora else ()
        salt = (("cache_salt", self._salt),) if self._salt and block == 0 else ()
        return (lora + salt) or None

    def event_extra_keys(self, first: int, last: int) -> list[tuple[object, ...] | None]:
        """Return what events say of the extra keys of blocks ``first``…``last`` - 1: their values without the tags."""
        keys = (self._extra_keys(block) for block in range(first, last))
        return [tuple(key[1] for key in block) if block else None for block in keys]

    @property
    def decodes(self) -> bool:
        """Only the token emitted last remains to be computed."""
        return self.emitted > 0 and self.computed == len(self.tokens) - 1

    def start(self, hits: list[Block], computed: int) -> None:
        """Begin to run behind the blocks ``hits``, which hold the first ``computed`` tokens, and maybe the last one."""
        self.state = State.RUNNING
        self.blocks = list(hits)
        self.computed = computed
        self.announced = len(hits)

    def emit(self) -> bool:
        """Emit the answer's next token; True when it was the last."""
        self.tokens.append(self.answer.token_ids[self.emitted])
        self.hash_full_blocks()
        self._news.set()
        return self.emitted == len(self.answer.token_ids)

    def end(self, state: State) -> None:
        """Mark as over."""
        self.state = state
        self._news.set()

    async def outputs(self) -> AsyncIterator[range]:
        """Yield the indices of answer tokens as they become due, until the last; ends early when aborted."""
        seen = 0
        while True:
            await self._news.wait()
            self._news.clear()
            if self.emitted > seen:
                yield range(seen, self.emitted)
                seen = self.emitted
            if self.state in (State.FINISHED, State.ABORTED):
                return
