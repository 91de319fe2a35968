"""What is compared: how a gateway places requests, and whether pods pull.

An arm is what a gateway's configuration says of placement and pulls. The presets are the arms of published comparisons.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

import msgspec

from config.schema import P2P, Placement
from loadgen.sim.files import named
from scorers import KvUtilization, MaxScore, Queue, RandomPick, TokenLoad, WeightedRandom


class RoundRobin:
    """A picker that takes one candidate after the other. It has a memory, so each simulation needs its own."""

    def __init__(self) -> None:
        self._turns = count()

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """The next one."""
        del coordinate
        return next(self._turns) % len(totals)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """Sections of a gateway's configuration, which may have others beside them; `in_turn` displaces the picker."""

    placement: Placement = Placement()
    p2p: P2P = P2P()
    in_turn: bool = False


_OFF: Final = P2P(enabled=False)
_NOTHING: Final = Placement(scorers=(), picker=RandomPick())
_LOAD: Final = Placement(scorers=(Queue(weight=3.0), KvUtilization(weight=2.0)), picker=WeightedRandom())
_TOKEN_LOAD: Final = Placement(scorers=(TokenLoad(),), picker=MaxScore())

ARMS: Final = {
    "random": Arm(placement=_NOTHING, p2p=_OFF),
    "round-robin": Arm(placement=_NOTHING, p2p=_OFF, in_turn=True),
    "affinity": Arm(p2p=_OFF),
    "affinity+pull": Arm(),
    "load": Arm(placement=_LOAD, p2p=_OFF),
    "load+pull": Arm(placement=_LOAD),
    "token-load": Arm(placement=_TOKEN_LOAD, p2p=_OFF),
    "token-load+pull": Arm(placement=_TOKEN_LOAD),
}
"""By name. Affinity is the gateway's default: prefix 3, queue 2, kv-utilization 2."""


def arm_named(name: str) -> Arm:
    """A preset, or what a YAML file says. Raises ValueError with the reason."""
    return named("arm", name, ARMS, Arm)
