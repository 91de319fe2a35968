"""The threads of the `tokenizers` library give way to the event loop.

The library spreads a batch over a pool of a thread per core, made with its first batch. Where they fill all cores, the
loop waits for a slice of the scheduler's, 3 ms on Linux. They hold no lock of Python's, so they may run at a
lower priority than it; threads that do hold it may not. On Linux a priority is a thread's own, and
goes on to the threads that it makes. So the first batch is encoded in a thread of lowered priority.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from threading import Thread, get_native_id

from tokenizers import Tokenizer, models

_NICER = 3  # half the weight: on cores that are shared tokenizing must not starve


@cache
def give_way() -> None:
    """From now on they do; once per process, before its first batch. Elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        first = Thread(target=_first_batch, name="tokens-first")
        first.start()
        first.join()


def _first_batch() -> None:
    thread = get_native_id()
    with suppress(OSError):  # a sandbox may forbid it; they are then as all threads
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)
    Tokenizer(models.BPE()).encode_batch_fast(["", ""])
