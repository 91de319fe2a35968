"""What a candidate has to do, and how long that takes: the terms of every expectation.

Pure. Everything is in seconds and tokens, and every call is O(1).
"""

from typing import Final

from scorers.base import Candidate, PlacementRequest
from scorers.costs import Costs, Prefill, Pull
from scorers.samples import Timed

_STEP_TOKENS: Final = 8192
"""What an engine computes in one step at most, by default: how long a busy source takes to answer."""


def alone_s(request: PlacementRequest, candidate: Candidate) -> float:
    """Seconds until the first token where the candidate computes all that it lacks. O(1)."""
    costs, tokens = request.costs or Costs(), request.prompt_tokens or 0
    fixed, token, square, decode = prefill = costs.prefill((candidate.pod, candidate.rank))
    held = held_tokens(candidate, tokens - 1 if tokens else 0)
    wait = wait_seconds(candidate, prefill) + decode * decoding_requests(candidate)
    return wait + (fixed + token * (tokens - held) + square * (tokens * tokens - held * held))


def timed(
    costs: Costs, consumer: Candidate, context: int, computing: tuple[int, int], source: Candidate | None, lead: int
) -> Timed:
    """What a request makes `consumer` do, to be timed. O(1).

    `context` is the prompt's length, `computing` are m and n² - h², `lead` is what it pulls; 0: it waits for what
    another one pulls, from which nothing follows for the costs.
    """
    rank = consumer.pod, consumer.rank
    terms = Prefill(1.0, float(computing[0]), float(computing[1]), float(decoding_requests(consumer)))
    if source is None:
        return Timed(rank, context, terms)
    peer, wait_s = (source.pod, source.rank), wait_seconds(consumer, costs.prefill(rank))
    if lead <= 0:
        return Timed(rank, context, terms, peer, None, wait_s)
    step_s = step_seconds(source, costs.prefill(peer))
    pulling = Pull(1.0, float(lead * link_share(source, consumer)), step_s, 0.0 if costs.met(peer, rank) else 1.0)
    return Timed(rank, context, terms, peer, pulling, wait_s)


def pulling_seconds(costs: Costs, work: Timed) -> float:
    """What of this is the pull. O(1)."""
    if work.source is None or work.pulling is None:
        return 0.0
    return costs.pull(work.source, work.rank).seconds(work.pulling.token, work.pulling.step, met=not work.pulling.setup)


def held_tokens(candidate: Candidate, most: int) -> int:
    """Of a prompt, what the candidate holds or is about to, as far as it is believed; `most` of them count."""
    held, speculative = candidate.any_tokens, candidate.speculative_tokens
    if candidate.credit < 1.0:
        held = int(candidate.credit * held)
    if speculative > held:  # noqa: PLR1730 - a third of the time, and called for each candidate
        held = speculative
    return held if held < most else most  # noqa: FURB136 - likewise


def link_share(source: Candidate, consumer: Candidate) -> int:
    """Pulls on the busier of both links, one more from the source to the consumer included."""
    return 1 + max(source.serving, consumer.pulls)


def step_seconds(source: Candidate, prefill: Prefill) -> float:
    """Seconds of the step that a source is in: of what it has to compute as much as fits into one."""
    seconds = prefill.decode * decoding_requests(source)
    if tokens := source.in_flight_tokens:
        backlog = prefill.seconds(tokens, source.in_flight_square, source.in_flight_unanswered)
        seconds += backlog * min(1.0, _STEP_TOKENS / tokens)
    return seconds


def wait_seconds(candidate: Candidate, prefill: Prefill) -> float:
    """Until what is before it is computed. Strangers' requests are as long as this gateway's own there."""
    unanswered, strangers = candidate.in_flight_unanswered, 0
    if waiting := candidate.waiting:
        strangers = max(0, waiting - candidate.in_flight_requests)
    fixed, token, square, _ = prefill
    if not unanswered:
        return strangers * fixed
    backlog = fixed * unanswered + token * candidate.in_flight_tokens + square * candidate.in_flight_square
    each, progress = backlog / unanswered, candidate.progress_s
    if progress > each:  # noqa: PLR1730 - likewise
        progress = each
    return backlog - progress + strangers * each if strangers else backlog - progress


def decoding_requests(candidate: Candidate) -> int:
    """Requests that are being answered there, strangers' as well."""
    own, running = candidate.in_flight_requests, candidate.running
    if running is not None and running > own:
        own = running
    return own - candidate.in_flight_unanswered
