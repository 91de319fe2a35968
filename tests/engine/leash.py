"""Holds a pod on a leash: `python leash.py PROGRAM ARGUMENT…`, with a pipe as standard input.

The pod runs in a process group of its own, whose id is the first line of standard output; the pod writes to standard
error. A byte on the pipe sends the pod SIGTERM. When the pipe ends, because its other end closed it or died in whatever
way, the group is killed with SIGKILL. However the pod ends, its processes are reaped and its shared memory is removed.
"""

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LAST_MOMENT_S = 5.0

# Python's and vLLM's segments have one pod as their owner. Those of UCX, which both ends of a pull map, do not.
_SEGMENT = re.compile(r"/dev/shm/(?:psm_|sem\.|vllm_offload_)\S+")  # noqa: S108


def main() -> int:
    # The pod's orphans become children of this process, so that all of them can be waited for.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pod = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    sys.stdout.write(f"{pod.pid}\n")
    sys.stdout.flush()
    segments = _hold(pod)
    segments |= _segments(pod.pid)
    _kill_all_but_trackers(pod.pid)
    _reap(time.monotonic() + _LAST_MOMENT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pod.pid, signal.SIGKILL)
    code = pod.wait()
    _reap()
    for segment in segments:
        Path(segment).unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def _hold(pod: subprocess.Popen[bytes]) -> set[str]:
    """Return when the pod is to be killed or has ended, with the shared memory known to have been its own."""
    segments: set[str] = set()
    ended = os.pidfd_open(pod.pid)
    while True:
        readable, _, _ = select.select([sys.stdin, ended], [], [])
        if ended in readable:
            # Its other processes notice that, and get a moment to end in order.
            pod.wait()
            _reap(time.monotonic() + _LAST_MOMENT_S)
            return segments
        if not os.read(sys.stdin.fileno(), 1):
            return segments
        segments = _segments(pod.pid)
        pod.terminate()


def _segments(group: int) -> set[str]:
    """The shared memory that the group's processes map."""
    return {name for process in _members(group) for name in _SEGMENT.findall(_read(process / "maps"))}


def _kill_all_but_trackers(group: int) -> None:
    """Python's resource trackers end when the processes they serve are gone, and unlink what those left."""
    for process in _members(group):
        if "multiprocessing.resource_tracker" not in _read(process / "cmdline"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def _members(group: int) -> list[Path]:
    """Directories in /proc of the group's processes."""
    members = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(int(process.name)) == group:
                members.append(process)
    return members


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # ended meanwhile
        return ""


def _reap(deadline: float | None = None) -> None:
    """Wait for all children; with a deadline (monotonic) at most until then."""
    with contextlib.suppress(ChildProcessError):
        while deadline is None or time.monotonic() < deadline:
            if os.waitpid(-1, 0 if deadline is None else os.WNOHANG) == (0, 0):
                time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
