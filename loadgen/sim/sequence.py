"""One request inside a modelled pod."""

from array import array
from collections.abc import Callable
from typing import NamedTuple


class Reused(NamedTuple):
    """Prompt tokens that were not computed, by where their blocks came from."""

    gpu: int = 0
    cpu: int = 0
    pulled: int = 0


class Sequence:
    """A prompt and the answer it will get, whose `keys` are those of the full blocks of both.

    `first` is called with its first token, `ended` with its last; neither once it was aborted. `left` is called where
    it was while it loads. `source` is the number of the pod to pull from.
    """

    __slots__ = (
        "admitted",
        "blocks",
        "charged",
        "computed",
        "ended",
        "first",
        "keys",
        "landed",
        "landed_end",
        "last_step",
        "left",
        "loaded",
        "named",
        "number",
        "offloaded",
        "output",
        "over",
        "prompt",
        "reach",
        "reused",
        "source",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        tokens: "array[int]",
        keys: list[int],
        prompt: int,
        *,
        source: int | None,
        first: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.number = number
        self.tokens = tokens
        self.keys = keys
        self.prompt = prompt  # tokens to compute before the next one comes; grows where a preempted one begins anew
        self.output = len(tokens) - prompt
        self.source = source
        self.reach: int | None = None  # blocks that the source was found to have of it; None: nobody knows
        self.first = first
        self.ended = ended
        self.left: Callable[[], None] = _nothing
        self.computed = 0
        self.named = 0  # blocks on the GPU under their keys
        self.blocks = 0  # blocks on the GPU, the last of which may have no key
        self.offloaded = 0
        self.last_step = 0  # by the pod's count of steps in which something decodes
        self.charged = False
        self.loaded = False
        self.landed = Reused()
        self.landed_end = 0
        self.reused: Reused | None = None
        self.admitted = 0
        self.over = False

    def reuses(self, tokens: int) -> None:
        """So many of its tokens are not computed; what counts is the first time."""
        if self.reused is None:
            cpu = min(self.landed.cpu, tokens)
            pulled = min(self.landed.pulled, tokens - cpu)
            self.reused = Reused(tokens - cpu - pulled, cpu, pulled)

    def has_answered(self, tokens: int) -> None:
        """It is put back while it answers: what it has answered is to be computed as part of its prompt."""
        self.prompt += tokens
        self.output -= tokens
        self.first = _nothing

    def begin_anew(self) -> None:
        """It is put back, and holds nothing any more."""
        self.computed = 0
        self.loaded = False
        self.landed_end = 0


def _nothing() -> None:
    return
