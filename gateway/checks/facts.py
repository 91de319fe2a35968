"""What was seen of a pod, before anybody says what it means. None, where nothing else is said: it was not told."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from gateway.checks.told import Occupancy, Trail
from gateway.served import Served
from index import BlockStored

Stream = Literal["none", "unreachable", "silent", "arriving"]
"""No endpoint is known; nobody answers there; somebody does, and the prompt was not announced; it was."""


class RankFacts(Struct, kw_only=True):
    """One rank. `label` is the pod's URL, and the rank where there are several."""

    label: str
    rank: int = 0
    endpoint: str | None = None
    stream: Stream = "none"
    problem: str = ""
    unusable: int = 0
    trail: Trail | None = None
    """The fresh prompt that it was given: `prompt_blocks` of prompt, one more with the answer."""
    common: BlockStored | None = None
    """What it announced of the prompt that all pods were given."""
    prompt_blocks: int = 0
    coarse: bool = False
    """Its CPU tier took nothing of a short prompt, so a longer one followed, with hardly an answer."""
    offloaded: int = 0
    described: bool = True
    replay: Literal["none", "silent", "answers"] = "none"
    occupancy: Occupancy | None = None
    block_size: int | None = None
    gpu_blocks: int | None = None
    p2p: tuple[str, int] | None = None
    refused: str | None = None
    """That nobody listens at `p2p`."""
    unreached: str | None = None
    """Why that cannot be told: the pods may reach it all the same."""
    tells_cached: bool | None = None
    failed: str = ""
    """Why the prompt had no answer."""


class PodFacts(Struct, kw_only=True):
    """One pod. `unreachable`: why nothing else is known of it."""

    url: str
    unreachable: str = ""
    models: list[Served] = field(default_factory=list)
    version: str | None = None
    identity: dict[str, Any] | None = None
    identity_problem: str = ""
    """Why it could not be read, though the pod has it."""
    ranks: list[RankFacts] = field(default_factory=list)

    @property
    def model(self) -> str | None:
        """What requests call it."""
        return self.models[0].id if self.models else None
