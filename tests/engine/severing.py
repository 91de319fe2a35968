"""Connections of a running pod that break at its end only: the other end is told, the pod's own protocol is not."""

import contextlib
import ctypes
import os
from pathlib import Path

from tests.engine.pods import Pod

_ESTABLISHED = "01"
_BOTH_WAYS = 2
_PIDFD_GETFD = 438


def sever(pod: Pod, port: int) -> None:
    """Break the connections that the pod has made to a port of this machine, at the pod's end only by a shutdown."""
    broken = 0
    wanted = f"0100007F:{port:04X}"
    for process in pod.processes():
        connections = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
        inodes = {fields[9] for fields in connections if fields[2] == wanted and fields[3] == _ESTABLISHED}
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) in {f"socket:[{inode}]" for inode in inodes}:
                    _shut(process, int(descriptor.name))
                    broken += 1
    assert broken, "no connection to break"


def _shut(process: int, descriptor: int) -> None:
    """Shut down a socket of another process."""
    pidfd = os.pidfd_open(process)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        try:
            assert ctypes.CDLL(None, use_errno=True).shutdown(copy, _BOTH_WAYS) == 0
        finally:
            os.close(copy)
    finally:
        os.close(pidfd)
