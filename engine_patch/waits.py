"""How long a request waits for a peer.

One clock per request that names a source. It starts when the first block is asked for, and runs through the lookup and
the transfer that follows: a request that computed instead would be ahead by just this. The transfer may take longer by
what its bytes need at a slow, but working, link.

What a peer had no chance to do in time counts against it all the same: a source that is busy for seconds is no source.
But nobody gives up on an answer that has arrived: ask `expired` after the messages were read, and only about what is
still missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 2.0
SLOW_LINK_BYTES_PER_S = float(2**30)

SHORTEST_TRANSFER_S = 0.25
"""What a transfer gets at least, though the lookup used up the time: blocks that were found are worth a little more."""

LONGEST_DEADLINE_S = 600.0
DEADLINE_KEY = "deadline_ms"


def deadline_of(source: Mapping[str, Any], default_s: float) -> tuple[float, bool]:
    """Seconds that a request may wait, and whether that is the request's own word, not the default.

    `source` is the `remote_kv_source` of `kv_transfer_params`. What is no positive number is as if it were not there:
    a pull may fail, a request may not.
    """
    given = source.get(DEADLINE_KEY)
    if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
        return default_s, False
    return min(given / 1000, LONGEST_DEADLINE_S), True


def is_sound(params: object) -> bool:
    """Whether the routing in `kv_transfer_params` has the types that vLLM takes for granted.

    Its own tier lets the engine die of others.
    """
    if params is None:
        return True
    if not isinstance(params, Mapping):
        return False
    roles = [params.get(name) for name in ("remote_prefiller", "remote_decoder", "remote_kv_source")]
    return all(
        role is None
        or (
            isinstance(role, Mapping)
            and isinstance(role.get("kv_request_id"), str | None)
            and isinstance(role.get("remote_host"), str | None)
            and isinstance(role.get("remote_port"), int | str | None)
        )
        for role in roles
    )


@dataclass(slots=True)
class _Wait:
    allowed_s: float
    exact: bool
    started_at: float | None = None


class Waits:
    """The clocks of the requests that name a source, by their `kv_request_id`."""

    def __init__(self, *, bytes_per_s: float = SLOW_LINK_BYTES_PER_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._waits: dict[str, _Wait] = {}

    def admit(self, request: str, allowed_s: float, *, exact: bool) -> None:
        """A request came that may wait so long; with `exact` its transfer's size adds nothing."""
        self._waits[request] = _Wait(allowed_s, exact)

    def start(self, request: str, now: float) -> float | None:
        """The request waits: since when, starting its clock if it stood; None of a request without a limit."""
        wait = self._waits.get(request)
        if wait is None:
            return None
        if wait.started_at is None:
            wait.started_at = now
        return wait.started_at

    def expired(self, request: str, now: float) -> bool:
        """Whether the request has waited long enough for its lookup."""
        wait = self._waits.get(request)
        return wait is not None and wait.started_at is not None and now - wait.started_at >= wait.allowed_s

    def transfer_ends(self, request: str, size: int, now: float) -> float | None:
        """Until when a transfer of `size` bytes that starts now has to be through; None: without a limit."""
        wait = self._waits.get(request)
        if wait is None:
            return None
        started_at = now if wait.started_at is None else wait.started_at
        if wait.exact:
            return max(started_at + wait.allowed_s, now + SHORTEST_TRANSFER_S)
        return max(started_at + wait.allowed_s, now + SHORTEST_TRANSFER_S) + size / self._bytes_per_s

    def finish(self, request: str) -> None:
        """The request is over."""
        self._waits.pop(request, None)

    def __len__(self) -> int:
        return len(self._waits)
