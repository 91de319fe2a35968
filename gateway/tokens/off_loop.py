"""Work that takes longer than a chunk may be late goes to threads.

Tokenizing lets go of the interpreter lock, so a long prompt costs the loop only the hand-overs of the lock. Short work
stays on the loop: a thread's round trip costs more than it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.threads import tell
from gateway.tokens.refusal import Refused

T = TypeVar("T")

_INLINE_BYTES = 2048  # of a body or prompt: some 0.5 ms when nothing of it is known
_WAITING_PER_THREAD = 32  # prompts of 128K tokens take 0.2 s cold; more than this many are not done within a deadline


class OffLoop:
    """A few threads for prompts. `threads` share the interpreter lock: more than the cores do not help."""

    def __init__(self, threads: int) -> None:
        self._under_way = 0
        self._begin(threads)

    def reconfigure(self, threads: int) -> None:
        """Work from now on has so many; what was handed over before ends in those that were there."""
        if threads != self._threads:
            before = self._pool
            self._begin(threads)
            before.shutdown(wait=False)

    def _begin(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokens")
        self._most = threads * _WAITING_PER_THREAD

    async def run(self, size: int, work: Callable[[], T], deadline: float | None = None) -> T:
        """What `work` returns or raises; `size` in bytes decides where it runs.

        Raises `Refused` ("saturated"; "timeout" at `deadline`, the loop's time). A caller that is cancelled leaves:
        work that has not begun is dropped, other work ends in its thread.
        """
        if size <= _INLINE_BYTES:
            return work()
        if self._under_way >= self._most:
            raise Refused("saturated", f"{self._under_way} prompts wait to be tokenized")
        self._under_way += 1
        future = self._pool.submit(work)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: tell(loop, self._ended))
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise Refused("timeout", "the prompt was not tokenized in time") from None

    def close(self) -> None:
        """Work that has not begun is dropped; does not wait for the rest."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self) -> None:
        self._under_way -= 1
