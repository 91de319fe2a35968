"""Faults on request: what goes wrong with a simulated pod when somebody asks for it.

In JSON (POST /fault, where the pod allows it) a fault is an object that its ``kind`` names. ``seconds`` are real time,
whatever the profile's speed; where a fault may have them and does not, it lasts until something else ends it. The same
fault again replaces the one in force.
"""

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Run
from typing import Annotated, TypeAlias, get_args

import msgspec
from msgspec import Meta

from loadgen.engine import Engine
from loadgen.publisher import Publisher
from loadgen.pulls import Link, PullServer

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]


class _Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class Stall(_Fault, frozen=True, tag="stall"):
    """stand still: no step, no answer to a peer; HTTP routes that need no engine go on"""

    seconds: Seconds | None = None


class Resume(_Fault, frozen=True, tag="resume"):
    """end a stall"""


class Kill(_Fault, frozen=True, tag="kill"):
    """end as a lost machine does, every connection reset; start anew on the same ports after `seconds`, if given"""

    seconds: Seconds | None = None


class DropEvents(_Fault, frozen=True, tag="drop_events"):
    """lose the next event batches of a rank on the way; a replay still has them"""

    count: Count = 1
    rank: Annotated[int, Meta(ge=0)] = 0


class SlowLink(_Fault, frozen=True, tag="slow_link"):
    """take `factor` times as long for pulls from this pod and by it; 1 ends it"""

    factor: Annotated[float, Meta(gt=0)]
    seconds: Seconds | None = None


class StaleSession(_Fault, frozen=True, tag="stale_session"):
    """leave the pulls of pods that pulled from here before without an answer until their deadline; they stay so until
    they or this pod restart
    """

    seconds: Seconds | None = None


class FailNext(_Fault, frozen=True, tag="fail_next"):
    """answer the next completions with an error"""

    status: Annotated[int, Meta(ge=400, le=599)] = 503
    count: Count = 1


AnyFault: TypeAlias = Stall | Resume | Kill | DropEvents | SlowLink | StaleSession | FailNext


def decode(body: bytes) -> AnyFault:
    """Return the fault that a JSON object describes. Raises ValueError, which says in one line what is wrong."""
    try:
        fault: AnyFault = msgspec.json.decode(body, type=AnyFault)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    return fault


def described() -> Iterator[tuple[str, str]]:
    """Yield every fault as its JSON, each field with its default (``…`` where there is none), and what it does."""
    for kind in get_args(AnyFault):
        shown = {"kind": kind.__struct_config__.tag}
        for field in msgspec.structs.fields(kind):
            shown[field.name] = "…" if field.required else field.default
        yield msgspec.json.encode(shown).decode(), " ".join((kind.__doc__ or "").split())


class Faults:
    """What can go wrong in one life of a pod; ``close`` when that ends. Lists have an entry per rank."""

    def __init__(
        self, engines: Run[Engine], publishers: Run[Publisher], links: Run[Link], pull_servers: Run[PullServer]
    ) -> None:
        self._engines = engines
        self._publishers = publishers
        self._links = links
        self._pull_servers = pull_servers
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def stall(self, seconds: float | None) -> None:
        """Stand still, until ``resume`` where no ``seconds`` are given."""
        for engine in self._engines:
            engine.stall()
        self._end_after(seconds, Stall, self.resume)

    def resume(self) -> None:
        """Go on after ``stall``."""
        self._end_after(None, Stall, self.resume)
        for engine in self._engines:
            engine.resume()

    def drop_events(self, count: int, rank: int) -> None:
        """Lose the next ``count`` batches of a rank. ValueError: there is no such rank."""
        if not 0 <= rank < len(self._publishers):
            raise ValueError(f"there is no rank {rank}")
        self._publishers[rank].drop(count)

    def slow_link(self, factor: float, seconds: float | None) -> None:
        """Make every pull from and to this pod take ``factor`` times as long."""

        def set_to(slowdown: float) -> None:
            for link in self._links:
                link.slowdown = slowdown

        set_to(factor)
        self._end_after(seconds, SlowLink, lambda: set_to(1.0))

    def stale_session(self, seconds: float | None) -> None:
        """Leave lookups in today's sessions unanswered."""

        def end() -> None:
            for pull_server in self._pull_servers:
                pull_server.remember_sessions()

        for pull_server in self._pull_servers:
            pull_server.forget_sessions()
        self._end_after(seconds, StaleSession, end)

    def close(self) -> None:
        """Leave things as they are."""
        for timer in self._ends.values():
            timer.cancel()
        self._ends.clear()

    def _end_after(self, seconds: float | None, kind: type[_Fault], end: Callable[[], None]) -> None:
        """Have a kind of fault end after ``seconds`` and not at the time of its predecessor; None: not by itself."""
        if (earlier := self._ends.pop(kind.__name__, None)) is not None:
            earlier.cancel()
        if seconds is not None:
            self._ends[kind.__name__] = asyncio.get_running_loop().call_later(seconds, end)
