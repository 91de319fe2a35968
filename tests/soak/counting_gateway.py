"""A gateway that tells, on SIGUSR1, how many tasks its event loop has: `python -m tests.soak.counting_gateway`.

A line on standard error, among those of its log: `tasks: 12 port=1 trial=2 …`, with their names up to the first space.
"""

import asyncio
import signal
import sys
from collections import Counter

from gateway.cli import main


def tell(*_: object) -> None:
    """Called between two steps of the loop's thread, so that the loop is the running one."""
    names = Counter(task.get_name().partition(" ")[0].partition("-")[0] for task in asyncio.all_tasks())
    told = " ".join(f"{name}={count}" for name, count in sorted(names.items()))
    sys.stderr.write(f"tasks: {names.total()} {told}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.exit(main())
