"""What a placement decision sees, and what a scorer promises.

A scorer is stateless: everything it may know about a pod is a column of `Candidate`, so the same formula runs behind
sockets, in a simulator and under a property test. New data is one field here and one assignment where candidates are
made.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

import msgspec

from scorers.costs import Costs, Rank

Weight = Annotated[float, msgspec.Meta(ge=0)]
"""Share of a scorer in the total: finite, >= 0."""

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A number in 0 … 1."""

UNKNOWN = 0.5
"""Score of a candidate whose load is unknown: neither preferred nor taken for saturated."""

Role = Literal["both", "prefill", "decode"]
"""What a pod does of a request: all of it, its prompt, or its answer."""

AdapterState = Literal["loaded", "slot", "waiting", "full"]
"""Where a LoRA adapter stands on a pod: in use; not, but a slot is free; no slot, and requests wait for it; neither."""

Column = Literal["role", "labels", "session", "cold_turn", "adapter", "expected_ttft"]
"""The columns of `Candidate` that are filled only where a scorer or a filter says, in `needs`, that it reads them."""


class Candidate(msgspec.Struct, frozen=True):
    """One rank of one pod, as seen for one request. Token counts are contiguous from the prompt's first block.

    `gateway.pods` makes candidates by position: the order of the fields is that of its arguments.
    """

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
    in_flight_unanswered: int = 0
    """How many of them have not answered yet."""
    in_flight_square: int = 0
    """Sum of n² - h² over those that have not: prompts of n tokens, of which h need not be computed."""
    in_flight_context: int = 0
    """Prompt tokens of requests that have answered and not ended: what the pod decodes behind."""
    progress_s: float = 0.0
    """Seconds for which the first of them has been computed: since the pod's last first byte, or since it was idle."""
    pulls: int = 0
    """How many of those that have not answered pull from a peer."""
    pulled_tokens: int = 0
    """Tokens that these pull."""
    serving: int = 0
    """Requests on other ranks that pull from this one, and have not answered yet."""
    serving_tokens: int = 0
    """Tokens that these pull."""
    awaited: int = 0
    """Requests on other ranks that wait for what is pulled from this one, those that pull it and those that joined."""
    turnover: float = 0.0
    """Share of the blocks that come to the rank's tiers for which others fall out of them, 0 … 1."""
    kv_tokens: int = 0
    """Tokens for which the GPU tier has blocks; 0: unknown."""
    role: Role = "both"
    """What the pod does of a request."""
    labels: Mapping[str, str] = {}
    """What the configuration says of the pod."""
    session: bool = False
    """Whether the request's session was last placed on this rank."""
    cold_turn: int = 0
    """Number of the last request that was placed here and of which nobody held anything; 0: there was none.

    Such requests are numbered over the whole fleet, from 1 on: unlike times, numbers tell apart what came at once.
    """
    adapter: AdapterState | None = None
    """Where the request's adapter stands on the pod at the last poll; None: unknown, or the model is no adapter."""
    expected_ttft: float | None = None
    """Seconds until the request's first token if it is placed here; None: unknown."""
    coming_tokens: int = 0
    """Tokens of the prompt that a pull under way brings here: who wants these, too, waits for it, and moves nothing."""
    coming_s: float = 0.0
    """Seconds until they are expected here."""
    coming_from: str | None = None
    """URL of the pod that they come from."""
    coming_rank: int = 0
    """Its rank that they come from."""


class Barred(msgspec.Struct, frozen=True):
    """Pulls that must not be named, since they fail."""

    sources: frozenset[Rank] = frozenset()
    """Nobody pulls from these."""
    pairs: frozenset[tuple[Rank, Rank]] = frozenset()
    """Source and consumer."""
    strangers: frozenset[tuple[str, str]] = frozenset()
    """Pods, by URL and in either order, that can never pull from each other."""

    def bars(self, source: Candidate, consumer: Candidate) -> bool:
        """Whether the one must not be named to the other. O(1)."""
        peer = source.pod, source.rank
        return (
            peer in self.sources
            or (peer, (consumer.pod, consumer.rank)) in self.pairs
            or (source.pod, consumer.pod) in self.strangers
        )


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when it is placed."""

    request_id: str
    prompt_tokens: int | None
    """Length of the prompt; None: the prompt was not tokenized."""
    block_size: int
    """Tokens per KV block."""
    model: str | None
    pulls: bool = False
    """Whether the request may pull from a peer."""
    pull_floor: int | None = None
    """Tokens by which a source has to lead; None: by as many as pay, by what is known of costs."""
    now: float = 0.0
    """Seconds of the clock that costs are learned by."""
    costs: Costs | None = None
    """What the fleet's work has cost so far; None: nothing is known."""
    barred: Barred | None = None
    """Pulls that must not be named; None: there are none."""


class Scorer(Protocol):
    """A formula with a weight. Implementations are frozen msgspec structs with `name` as their tag.

    One that reads columns of `Column` lists them in a class attribute `needs`; else they have their defaults.
    """

    @property
    def name(self) -> str:
        """What its scores are called in metrics and explanations."""

    @property
    def weight(self) -> float:
        """Factor of this scorer in the weighted total."""

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return one value in 0 … 1 per candidate, in their order; more is better.

        A candidate's value does not depend on the order of the others. What is unknown is neutral, never 0.
        """


class Filter(Protocol):
    """A condition on candidates, with `needs` as a scorer has it. Implementations are like scorers, without weight."""

    name: ClassVar[str]

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:
        """Return per candidate, in their order, whether it may be chosen. What is unknown is no reason against one."""


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
