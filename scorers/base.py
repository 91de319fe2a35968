"""What a placement decision sees, and what a scorer promises.

A scorer is stateless: everything it may know about a pod is a column of `Candidate`, so the same formula runs behind
sockets, in a simulator and under a property test. New data is one field here and one assignment where candidates are
made.
"""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Protocol

import msgspec

Weight = Annotated[float, msgspec.Meta(ge=0)]
"""Share of a scorer in the total: finite, >= 0."""

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A number in 0 … 1."""

UNKNOWN = 0.5
"""Score of a candidate whose load is unknown: neither preferred nor taken for saturated."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one pod, as seen for one request. Token counts are contiguous from the prompt's first block."""

    pod: str
    """URL of the pod, `http://10.0.0.1:8000`."""
    rank: int = 0
    """Data-parallel rank."""
    p2p_host: str | None = None
    """Host that pulls are served from, exactly as the pod was configured with it; None: no address."""
    p2p_port: int | None = None
    """Port that pulls are served from, the rank's offset included; None: no address."""
    gpu_tokens: int = 0
    """Confirmed tokens in the GPU tier."""
    cpu_tokens: int = 0
    """Confirmed tokens in the CPU tier, the tier that pulls are served from."""
    any_tokens: int = 0
    """Confirmed tokens the engine would reuse: the GPU prefix, continued from the CPU tier. >= gpu_tokens."""
    credit: float = 1.0
    """How far the confirmed counts are believed, 0 … 1: the pod's answers may have shown them wrong."""
    speculative_tokens: int = 0
    """Tokens expected from a request already placed here, unconfirmed: good for placement, never for a pull."""
    tiered: bool = True
    """False: the pod's events carry no CPU-tier data, so any_tokens is the best known measure of what it serves."""
    waiting: int | None = None
    """Requests in the pod's waiting queue at the last poll; None: unknown."""
    running: int | None = None
    """Requests in the pod's running batch at the last poll; None: unknown."""
    kv_usage: float | None = None
    """Used share of the GPU KV cache at the last poll, 0 … 1; None: unknown."""
    in_flight_requests: int = 0
    """Requests this gateway has under way on the pod."""
    in_flight_tokens: int = 0
    """Uncached prompt tokens of those that have not answered yet."""


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when it is placed."""

    request_id: str
    prompt_tokens: int | None
    """Length of the prompt; None: the prompt was not tokenized."""
    block_size: int
    """Tokens per KV block."""
    model: str | None


class Scorer(Protocol):
    """A formula with a weight. Implementations are frozen msgspec structs with `name` as their tag."""

    name: ClassVar[str]

    @property
    def weight(self) -> float:
        """Factor of this scorer in the weighted total."""

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return one value in 0 … 1 per candidate, in their order; more is better.

        A candidate's value does not depend on the order of the others. What is unknown is neutral, never 0.
        """


class Picker(Protocol):
    """Turns weighted totals into a choice."""

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """Return the index of the chosen total. `coordinate` in [0, 1) is the only source of chance.

        Raises ValueError when there is nothing to pick from.
        """


def require_weight(weight: float) -> None:
    """Raise ValueError unless `weight` is finite and >= 0 (decoding lets .nan and .inf of YAML through)."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be finite and >= 0, not {weight}")


def require_coordinate(coordinate: float) -> None:
    """Raise ValueError unless `coordinate` is in [0, 1)."""
    if not 0 <= coordinate < 1:
        raise ValueError(f"coordinate must be in [0, 1), not {coordinate}")
