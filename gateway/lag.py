"""How late the event loop is: what holds it up, holds up every request."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gateway.labelled import Histogram

_EVERY_S: Final = 0.1  # ten wake-ups a second cost a thousandth of a core


async def watch(lag: Histogram) -> None:
    """Ask for a timer, see when it comes, again and again until cancelled. uvloop's timers go by whole milliseconds."""
    while True:
        due = time.monotonic() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        lag.observe(max(0.0, time.monotonic() - due))
