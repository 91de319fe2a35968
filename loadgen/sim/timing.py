"""How long a modelled pod's steps take."""

from collections.abc import Sequence as Run
from typing import NamedTuple, Protocol

from loadgen.profile import PodProfile
from loadgen.sim.sequence import Sequence


class Chunk(NamedTuple):
    """What one sequence computes of its prompt in a step."""

    sequence: Sequence
    tokens: int


class Timing(Protocol):
    """Seconds, of what a step consists of. `context` is the sum of tokens that the decoding ones attend to."""

    def step_s(self, chunks: Run[Chunk], decodes: int, context: int, usage: float) -> float:
        """A step of these chunks and of so many that decode; `usage` is the share of the KV cache in use."""

    def growth_s(self, decodes: int) -> float:
        """By how much each step of so many that decode takes longer than the one before, for what they attend to."""


class ProfileTiming:
    """A profile's: see `loadgen.profile`."""

    def __init__(self, profile: PodProfile) -> None:
        self._profile = profile
        self._fixed = profile.ms(profile.step_fixed_ms)
        self._decode = profile.decode_s(0)
        self._per_context_token = profile.decode_s(1) - self._decode
        self._request = profile.ms(profile.request_fixed_ms)

    def step_s(self, chunks: Run[Chunk], decodes: int, context: int, usage: float) -> float:
        """As the profile says."""
        del usage
        seconds = self._fixed + decodes * self._decode + context * self._per_context_token
        for sequence, tokens in chunks:
            seconds += self._profile.prefill_s(tokens, sequence.computed)
            if not sequence.charged:
                sequence.charged = True
                seconds += self._request
        return seconds

    def growth_s(self, decodes: int) -> float:
        """As the profile says."""
        return decodes * self._per_context_token


class ReplayTiming:
    """The timing of Dynamo's mock engine, with which `dynamo.replay` runs (ai-dynamo 1.1.1), to be compared with it.

    prefill ms = 4.21e-7 t² + 0.01518 t + 16.5 of t tokens; decode ms = max(1, -25.74 u² + 54.01 u + 5.74) of the share
    u of the KV cache in use.
    """

    def step_s(self, chunks: Run[Chunk], decodes: int, context: int, usage: float) -> float:
        """Both parts, one after the other."""
        del context
        seconds = 0.0
        if chunks:
            tokens = sum(chunk.tokens for chunk in chunks)
            seconds += (4.21e-7 * tokens * tokens + 0.01518 * tokens + 16.5) * 1e-3
        if decodes:
            seconds += max(1.0, -25.74 * usage * usage + 54.01 * usage + 5.74) * 1e-3
        return seconds

    def growth_s(self, decodes: int) -> float:
        """Nothing."""
        del decodes
        return 0.0
