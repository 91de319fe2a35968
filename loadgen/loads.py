"""Loads: what the GPU lacks of a prompt comes from the CPU tier, and from the peer that its request names.

Blocks come once, as in vLLM 0.32, whose CPU tier knows of each block that it is on its way and defers whoever wants it:
from the answer of a lookup until what was pulled has landed, other sequences that lack one of these blocks wait,
whichever peer they name, or none, and then look again: on the GPU, in the CPU tier, and at their own peer for what it
is known to have and is still missing. Who names a peer has asked it before, since the look through a prompt does not
stop at what is on its way. Where a pull fails, or its client leaves, those who waited for it look again at once. A
sequence whose own pull has failed asks nobody any more.
"""

import asyncio
from collections.abc import Sequence as Run

from loadgen.cache import Block
from loadgen.profile import PodProfile
from loadgen.pulls import Puller
from loadgen.scheduler import Scheduler
from loadgen.sequence import KvSource, Sequence


class Coming:
    """Blocks that are on their way to one rank, by their hashes. No block is on its way twice."""

    def __init__(self) -> None:
        self._ends: dict[bytes, asyncio.Event] = {}

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._ends

    def end_of(self, hashes: Run[bytes]) -> asyncio.Event | None:
        """What is set when the first of these that is on its way has come, or will not; None: none of them is."""
        return next((self._ends[block_hash] for block_hash in hashes if block_hash in self._ends), None)

    def begin(self, hashes: Run[bytes]) -> None:
        """Blocks of one pull are on their way."""
        self._ends.update(dict.fromkeys(hashes, asyncio.Event()))

    def end(self, hashes: Run[bytes]) -> None:
        """They are no longer, all of one pull: who waits for one of them goes on."""
        for block_hash in hashes:
            self._ends.pop(block_hash).set()


class Load:
    """One sequence's load, which has the GPU blocks ``held`` from its head on: given back when it is over."""

    def __init__(
        self,
        profile: PodProfile,
        scheduler: Scheduler,
        puller: Puller,
        coming: Coming,
        sequence: Sequence,
        hits: Run[Block],
        restorable: int,
    ) -> None:
        self.held = list(hits)
        self._profile = profile
        self._scheduler = scheduler
        self._puller = puller
        self._coming = coming
        self._sequence = sequence
        self._first = len(hits)  # of its blocks that are not on the GPU
        self._restorable = restorable
        self._reach = len(sequence.hashes)  # blocks that its peer may have
        self._expected: Run[bytes] = ()  # what its own pull brings
        self._awaited: asyncio.Event | None = None
        scheduler.gpu.use(self.held)

    async def run(self) -> None:
        """Bring what can be had, whose peer's part may come to nothing."""
        try:
            pulled = await self._gather()
            restored = self._restorable if pulled else self._reserve(self._restorable)
            if restored or pulled:
                # Else it goes on in the same step as the one that it waited for.
                await asyncio.sleep(self._profile.restore_s((restored + pulled) * self._profile.block_size))
            self._scheduler.loaded(self._sequence, self.held, self._first, restored, pulled)
        finally:
            self._coming.end(self._expected)

    async def _gather(self) -> int:
        """Return how many blocks were pulled, when nothing that it lacks is on its way or to be asked for."""
        sequence = self._sequence
        while True:
            if sequence.source is not None and self._first + self._restorable < self._reach:
                if pulled := await self._pull(sequence.source):
                    return pulled
            elif (end := self._coming.end_of(self._missing[:1])) is not None:
                await end.wait()
            else:
                return 0
            self._look_again()

    async def _pull(self, source: KvSource) -> int:
        """Return how many blocks came. With 0 it has failed, or waited for those that are on their way."""
        pulled = await self._puller.pull(source, self._missing, self._expect)
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            await awaited.wait()
        elif not pulled:
            self._sequence.source = None
            self._coming.end(self._expected)
            self._expected = ()
        return pulled

    def _expect(self, found: int) -> int:
        """The source has so many of the blocks that it was asked for: return how many of them are to move."""
        asked = self._first + self._restorable
        self._reach = asked + found
        self._look_again(asked)
        coming = self._sequence.hashes[self._first + self._restorable : self._reach]
        self._awaited = self._coming.end_of(coming)
        if self._awaited is not None or not coming or self._reserve(self._restorable) < self._restorable:
            return 0
        self._expected = coming[: self._reserve(len(coming))]
        self._coming.begin(self._expected)
        return len(self._expected)

    def _look_again(self, reach: int = 0) -> None:
        """See what is on the GPU and in the CPU tier by now; up to block ``reach`` it is sure to be."""
        scheduler, hashes = self._scheduler, self._sequence.hashes
        scheduler.gpu.release(self.held[self._first :])
        del self.held[self._first :]
        more = scheduler.gpu.match(hashes[: self._sequence.longest_hit])[self._first :]
        scheduler.gpu.use(more)
        self.held += more
        self._first = len(self.held)
        self._restorable = max(reach - self._first, scheduler.cpu.match(hashes[self._first :]))

    def _reserve(self, count: int) -> int:
        """Take so many GPU blocks, or as many as there are; return how many."""
        count = min(count, self._scheduler.gpu.free)
        self.held += self._scheduler.allocate(count)
        return count

    @property
    def _missing(self) -> Run[bytes]:
        """What comes neither from the GPU nor from the CPU tier."""
        return self._sequence.hashes[self._first + self._restorable :]
