"""What is compared: how a gateway places requests, and whether pods pull.

An arm is what a gateway's configuration says of placement and pulls. The presets are the arms of published comparisons.
"""

from collections.abc import Sequence
from itertools import count
from typing import Final

import msgspec
from msgspec.structs import replace

from config.out_of_tree import spelt_out
from config.schema import P2P, Placement
from loadgen.sim.files import named
from scorers import ExpectedSource, RandomPick, Role, RoleFilter, WeightedSampling


class RoundRobin:
    """A picker that takes one candidate after the other. It has a memory, so each simulation needs its own."""

    def __init__(self) -> None:
        self._turns = count()

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """The next one."""
        del coordinate
        return next(self._turns) % len(totals)


_OFF: Final = P2P(enabled=False)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """Sections of a gateway's configuration, which may have others beside them; `in_turn` displaces the picker."""

    placement: Placement = Placement()
    p2p: P2P = P2P()
    in_turn: bool = False

    def of(self, role: Role) -> tuple[Placement, P2P]:
        """How requests are placed on pods of that role, each time with a picker of its own.

        What a pod answers only is handed to it, and no matter of sources.
        """
        placement, p2p = self.placement, self.p2p
        if self.in_turn:
            placement = replace(placement, preset=None, picker=RoundRobin())
        if role != "both":
            placement = replace(placement, preset=None, filters=(RoleFilter(roles=(role,)), *placement.filters))
        return placement, _OFF if role == "decode" else p2p


_EXPECTED_TTFT: Final = Placement(preset="expected-ttft")
_AUTO: Final = P2P(source=ExpectedSource())  # from as many tokens on as pay
_PUBLISHED: Final = P2P(min_cached_token_delta=2048, source=WeightedSampling())
_NOTHING: Final = Placement(scorers=(), picker=RandomPick())
_AFFINITY: Final = Placement(preset="affinity")
_LOAD: Final = Placement(preset="load")
_TOKEN_LOAD: Final = Placement(preset="token-load")

ARMS: Final = {
    "random": Arm(placement=_NOTHING, p2p=_OFF),
    "round-robin": Arm(placement=_NOTHING, p2p=_OFF, in_turn=True),
    "affinity": Arm(placement=_AFFINITY, p2p=_OFF),
    "affinity+pull": Arm(placement=_AFFINITY, p2p=_PUBLISHED),
    "load": Arm(placement=_LOAD, p2p=_OFF),
    "load+pull": Arm(placement=_LOAD, p2p=_PUBLISHED),
    "token-load": Arm(placement=_TOKEN_LOAD, p2p=_OFF),
    "token-load+pull": Arm(placement=_TOKEN_LOAD, p2p=_PUBLISHED),
    "expected-ttft": Arm(placement=_EXPECTED_TTFT, p2p=_OFF),
    "expected-ttft+pull": Arm(placement=_EXPECTED_TTFT, p2p=_AUTO),
}
"""By name. `expected-ttft+pull` is the gateway's default."""


def arm_named(name: str) -> Arm:
    """A preset, or what a YAML file says. Raises ValueError with the reason."""
    return named("arm", name, ARMS, Arm, spelt_out)
