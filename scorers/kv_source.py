"""Which peer a request's KV blocks are pulled from.

The decision has two halves, because the source is sampled from what is cached, whoever computes, and only then held
against the pod that placement chose.

Sampling, instead of taking the pod with most: every consumer of a widely held prefix would pull from the same peer.
Sampling by queue, instead of taking the shortest: queues are one poll old, so a whole window of requests would herd
onto the pod that looked idle. A band of one block, instead of equality: counts that differ by a block as events trickle
in would concentrate the pulls again.

Source: the reference router's published rules. The coordinate comes from a well-mixed hash, since a weak one puts
consecutive request ids next to each other and so onto one peer.
"""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import xxhash

from scorers.base import Candidate

SourceReason = Literal["named", "self", "below-floor", "no-holder", "cost"]


class SourceDecision(NamedTuple):
    """The peer to pull from, or why there is none."""

    source: Candidate | None
    reason: SourceReason
    expected_s: float = 0.0
    """Seconds until the first token, as expected with it; 0.0: not worked out."""
    tried_s: float = 0.0
    """Seconds by which it is expected to be dearer than computing: it is named all the same, to learn what it costs."""


_NO_HOLDER = SourceDecision(None, "no-holder")
_SELF = SourceDecision(None, "self")
_BELOW_FLOOR = SourceDecision(None, "below-floor")


def pullable_tokens(candidate: Candidate) -> int:
    """Return the confirmed contiguous tokens that `candidate` can serve to a peer; 0 without an address.

    Pulls are served from the CPU tier. A pod whose events carry no tier data is believed on any tier; one whose claims
    have proved wrong, only as far as its credit goes.
    """
    if candidate.p2p_host is None or candidate.p2p_port is None:
        return 0
    tokens = candidate.cpu_tokens if candidate.tiered else candidate.any_tokens
    return int(candidate.credit * tokens)


def best_holders(block_size: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those that can serve within one block (`block_size` tokens) of the most; none where nobody can any.

    O(candidates).
    """
    held = list(map(pullable_tokens, candidates))
    least = max(1, max(held, default=0) - block_size)
    return [candidate for candidate, tokens in zip(candidates, held, strict=True) if tokens >= least]


def sample_source(request_id: str, block_size: int, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the peer that would serve this prompt, or None when no reachable pod holds any of it.

    Of the pods that hold within one block (`block_size` tokens) of the most, one is drawn with weight
    1 ÷ (1 + waiting), unknown counting as 0. The same id and candidates, in any order, give the same pod.
    O(n log n) in the candidates.
    """
    band = sorted(best_holders(block_size, candidates), key=lambda holder: (holder.pod, holder.rank))
    if not band:
        return None
    shares = list(accumulate(1 / (1 + (holder.waiting or 0)) for holder in band))
    return band[bisect(shares, _coordinate(request_id) * shares[-1])]


def choose_source(source: Candidate | None, chosen: Candidate, *, min_cached_token_delta: int) -> SourceDecision:
    """Hold the sampled `source` against the pod that computes.

    Reasons: "no-holder" nothing was sampled; "self" the source is the computing pod (another rank of its host is a
    valid source); "below-floor" it leads by fewer than `min_cached_token_delta` tokens over what the computing pod
    has confirmed in any tier; "named" otherwise, the only reason that comes with a source.

    Raises ValueError for a delta below 1: a pull that gains nothing must not start. O(1).
    """
    if min_cached_token_delta < 1:
        raise ValueError(f"min_cached_token_delta must be >= 1, not {min_cached_token_delta}")
    if source is None:
        return _NO_HOLDER
    if same_engine(source, chosen):
        return _SELF
    if pullable_tokens(source) - chosen.any_tokens < min_cached_token_delta:
        return _BELOW_FLOOR
    return SourceDecision(source, "named")


def none_leads(block_size: int, candidates: Sequence[Candidate], chosen: Candidate) -> SourceReason:
    """Why there is no source where nobody leads the `chosen` one by enough. O(candidates)."""
    most = max(map(pullable_tokens, candidates))
    if not most:
        return "no-holder"
    own = pullable_tokens(chosen)
    return "self" if own and own + block_size >= most else "below-floor"


def same_engine(source: Candidate, chosen: Candidate) -> bool:
    """Whether both are one engine, which cannot pull from itself. O(1)."""
    # A pod known under two URLs is told by the address it serves pulls from, which includes the rank.
    return (source.pod, source.rank) == (chosen.pod, chosen.rank) or (source.p2p_host, source.p2p_port) == (
        chosen.p2p_host,
        chosen.p2p_port,
    )


def draw(request_id: str, candidate: Candidate) -> int:
    """A number by which equals are told apart: the same for the same two, and for each request another order. O(1)."""
    return _hashed(f"{request_id} {candidate.rank} {candidate.pod}")


def _coordinate(request_id: str) -> float:
    # 53 bits, not 64: the top 64-bit hashes divided by 2**64 round to 1.0, which is outside every share.
    return float((_hashed(request_id) >> 11) / 2**53)


def _hashed(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))
