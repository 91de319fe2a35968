"""Whether a pod that computes gets anywhere, told from its own metrics, as a pure state machine.

An engine that hangs, in a collective operation or in its driver, still answers `/health` and accepts requests: its HTTP
server is another process. What stands still is what its scheduler says after each step. Generated tokens move with
every decode; prompt tokens when a prefill ends; the use of the KV cache with each chunk of a long one, during which
vLLM counts no tokens at all. So a rank is stalled when none of the three has moved for a while, it says that requests
run, and this gateway has some on it. Requests that merely wait, for blocks that are being pulled for example, do not
run.
"""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """What a rank's metrics said: requests that run, and the marks of progress. None: not said."""

    running: int | None = None
    generated: float | None = None
    prompt: float | None = None
    kv_usage: float | None = None

    @property
    def marks(self) -> tuple[float | None, ...]:
        """What moves where something is computed."""
        return self.generated, self.prompt, self.kv_usage


class Progress:
    """One rank's. Time is an argument, in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._marks: tuple[float | None, ...] = ()
        self._since: float | None = None  # nothing has moved, though something should
        self.stalled = False

    def polled(self, work: Work, under_way: int, now: float, stall_after: float | None) -> bool:
        """Whether the rank is stalled, by a poll that found `work` while `under_way` requests of ours were on it.

        Once stalled it stays so until something moves or nothing runs. A pod that does not count generated tokens never
        is, nor is any with `stall_after` None.
        """
        moved, self._marks = work.marks != self._marks, work.marks
        if moved or not work.running or work.generated is None or stall_after is None:
            self._since, self.stalled = None, False
        elif not self.stalled and not under_way:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= stall_after:
            self.stalled = True
        return self.stalled
