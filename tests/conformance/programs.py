"""Programs of others, run to their end beside the gateway under test."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

INSTALLED = Path(__file__).resolve().parents[2] / "build" / "conformance"
"""Where `make conformance` puts clients that are not installed otherwise."""

_DEADLINE_S = 20.0


class Ended(NamedTuple):
    """How a program ended, and what it said."""

    status: int
    out: bytes
    errors: str


async def run(
    *command: str | Path, given: bytes = b"", env: Mapping[str, str] | None = None, deadline_s: float = _DEADLINE_S
) -> Ended:
    """Run with `given` as standard input, `env` added to the environment."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **(env or {})}
    )
    try:
        async with asyncio.timeout(deadline_s):
            out, errors = await process.communicate(given)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out, errors.decode(errors="replace"))
