"""Runs of consecutive ports: rank r of a pod listens at base + r, for events, replay and pulls alike."""

import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

_ATTEMPTS = 50


class _Closes(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closes)


def open_run(open_at: Callable[[int], tuple[Opened, int]], base: int, count: int) -> tuple[list[Opened], int]:
    """Open ``count`` consecutive ports from ``base`` on, or anywhere when it is 0; return what was opened, and the
    base.

    ``open_at(port)`` opens one port (0: any) and returns it with its number. Raises OSError when the ports are taken.
    """
    for _ in range(_ATTEMPTS):
        opened: list[Opened] = []
        port = base
        try:
            for _ in range(count):
                item, port = open_at(port)
                opened.append(item)
                port += 1
        except OSError as error:
            for item in opened:
                item.close()
            if base or error.errno != errno.EADDRINUSE:
                raise
        else:
            return opened, port - count
    raise OSError(errno.EADDRINUSE, f"no {count} consecutive free ports found")


def listen(host: str) -> Callable[[int], tuple[socket.socket, int]]:
    """Return an opener of TCP listening sockets on ``host`` for ``open_run``."""

    def open_at(port: int) -> tuple[socket.socket, int]:
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        return listener, listener.getsockname()[1]

    return open_at


def reset(sock: socket.socket | None) -> None:
    """Make the socket's close send a reset instead of a goodbye; for asyncio's, which hide the type, as well."""
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
