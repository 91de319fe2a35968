"""One data-parallel rank's engine: lets time pass for what its scheduler decides, loads blocks beside the steps,
publishes.

One task runs the steps; each load is a task of the same group. The scheduler's state changes only between awaits.
"""

import asyncio
from collections.abc import Sequence as Run

from loadgen.cache import Block
from loadgen.hashing import BlockHasher
from loadgen.loads import Coming, Load
from loadgen.profile import PodProfile
from loadgen.publisher import Publisher
from loadgen.pulls import Puller
from loadgen.scheduler import Chunk, Scheduler
from loadgen.sequence import Sequence

# How far behind its schedule a step may start without moving the schedule: timers are late by about a millisecond.
_CATCH_UP_S = 0.005


class Engine:
    """Runs sequences: ``run`` is its task, ``tasks`` own its loads, all else is called from the same event loop."""

    def __init__(
        self,
        profile: PodProfile,
        hasher: BlockHasher,
        publisher: Publisher,
        puller: Puller,
        tasks: asyncio.TaskGroup,
        *,
        self_describing: bool = True,
        offload_prompt_only: bool = False,
    ) -> None:
        self.profile = profile
        self.hasher = hasher
        self.publisher = publisher
        self._coming = Coming()
        self.scheduler = Scheduler(
            profile,
            self._start_load,
            coming=self._coming,
            self_describing=self_describing,
            offload_prompt_only=offload_prompt_only,
        )
        self._puller = puller
        self._tasks = tasks
        self._loads: dict[Sequence, asyncio.Task[None]] = {}
        self._work = asyncio.Event()
        self._going = asyncio.Event()
        self._going.set()
        self._step_ended = asyncio.Event()
        self._stepping = False

    @property
    def waiting(self) -> int:
        """Sequences that wait for capacity or for a load."""
        return len(self.scheduler.waiting) + len(self.scheduler.loading)

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""
        return len(self.scheduler.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; its client follows ``sequence.outputs()``."""
        self.scheduler.waiting.append(sequence)
        self._work.set()

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence and free what it holds; nothing happens to one that is over."""
        self.scheduler.abort(sequence)
        if sequence in self._loads:
            self._loads[sequence].cancel()
        self._work.set()

    def clear_gpu(self) -> bool:
        """Reset the GPU tier and announce it; False while a block is in use. The CPU tier stays."""
        cleared = self.scheduler.clear_gpu()
        self._work.set()
        return cleared

    def stall(self) -> None:
        """Stand still, in the middle of a step if need be, until ``resume``."""
        self._going.clear()

    def resume(self) -> None:
        """Go on after ``stall``."""
        self._going.set()

    async def between_steps(self) -> None:
        """Wait until the engine is not computing: it answers its peers only then."""
        await self._going.wait()
        if self._stepping:
            await self._step_ended.wait()

    def count_held(self, hashes: Run[bytes]) -> int:
        """Return how many of a peer's blocks the CPU tier holds, from the first on, and mark them used."""
        held = self.scheduler.cpu.match(hashes)
        self.scheduler.cpu.touch(hashes[:held])
        return held

    async def run(self) -> None:
        """Step until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            await self._going.wait()
            self._work.clear()
            self.scheduler.offload()
            plan = self.scheduler.plan()
            if plan:
                self._stepping = True
                due = max(due, clock() - _CATCH_UP_S) + self._duration(plan)
                await asyncio.sleep(max(0.0, due - clock()))
                await self._going.wait()
                self.scheduler.complete(plan)
                self._stepping = False
                self._step_ended.set()
                self._step_ended = asyncio.Event()
            self.publisher.publish(self.scheduler.take_events())
            if not plan:
                await self._work.wait()
                due = clock()  # nobody was late: there was nothing to do

    def _duration(self, plan: list[Chunk]) -> float:
        profile = self.profile
        seconds = profile.ms(profile.step_fixed_ms)
        for sequence, tokens in plan:
            if sequence.decodes:
                seconds += profile.decode_s(sequence.computed)
                continue
            seconds += profile.prefill_s(tokens, sequence.computed)
            if not sequence.charged:
                seconds += profile.ms(profile.request_fixed_ms)
                sequence.charged = True
        return seconds

    def _start_load(self, sequence: Sequence, hits: list[Block], restorable: int) -> None:
        load = Load(self.profile, self.scheduler, self._puller, self._coming, sequence, hits, restorable)
        task = self._tasks.create_task(load.run())
        self._loads[sequence] = task
        # A callback, because a task that is cancelled before it starts never reaches a finally.
        task.add_done_callback(lambda _: self._end_load(sequence, load.held))

    def _end_load(self, sequence: Sequence, held: list[Block]) -> None:
        del self._loads[sequence]
        self.scheduler.rejoin(sequence, held)
        self._work.set()
