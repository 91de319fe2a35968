"""What decodes on a modelled pod: each step gives each of these sequences a token."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from loadgen.sim.sequence import Sequence


class Decoding:
    """`context`: tokens whose KV a step reads, over all of them. They end in the order of their last steps."""

    def __init__(self) -> None:
        self.context = 0
        self._steps = 0  # in which something decoded
        self._by_end: list[tuple[int, int, Sequence]] = []  # a heap, by the step that is its last

    def __len__(self) -> int:
        return len(self._by_end)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, _, sequence in self._by_end)

    @property
    def steps_to_end(self) -> int:
        """Steps until the first of them ends. There has to be one."""
        return self._by_end[0][0] - self._steps

    @property
    def youngest(self) -> Sequence | None:
        """Which was admitted last. O(them)."""
        return max(self, key=lambda sequence: sequence.admitted, default=None)

    def add(self, sequence: Sequence) -> None:
        """It has its first token, and is to have another one at least."""
        self.context += sequence.prompt
        sequence.last_step = self._steps + sequence.output - 1
        heappush(self._by_end, (sequence.last_step, sequence.admitted, sequence))

    def advance(self, steps: int) -> int:
        """So many steps have ended, none of them later than the first last one; returns how many tokens they gave."""
        tokens = steps * len(self._by_end)
        self._steps += steps
        self.context += tokens
        return tokens

    def pop_ended(self) -> Sequence | None:
        """Remove one that has had its last step; None where there is none."""
        if not self._by_end or self._by_end[0][0] > self._steps:
            return None
        sequence = heappop(self._by_end)[2]
        self._forget(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> int:
        """It decodes no longer; returns how many tokens it has answered. O(them)."""
        self._by_end = [entry for entry in self._by_end if entry[2] is not sequence]
        heapify(self._by_end)
        return self._forget(sequence)

    def clear(self) -> None:
        """Forget them all."""
        self._by_end.clear()
        self.context = 0

    def _forget(self, sequence: Sequence) -> int:
        answered = sequence.output - (sequence.last_step - self._steps)
        # The token answered last has no KV yet.
        self.context -= sequence.prompt + answered - 1
        return answered
