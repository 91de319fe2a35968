"""The paced pod of the gateway's own load test, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*, core: int) -> Iterator[str]:
    """Its URL, for as long as the context lasts. Requests say in `pace` how fast they are answered."""
    command = [sys.executable, "-m", "tests.gateway.load.pod", os.devnull]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509 (before any thread is started)
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().removeprefix("port ").strip()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(timeout=10)
