"""When a request's first token comes, if a candidate computes it: and from whom it would best pull what it lacks.

For a candidate d that holds h of n prompt tokens, alone or with a source s that holds H > h of them:

    wait    = prefill of what d has not answered yet, less what the first of it has had already
    compute = prefill(n - h, n² - h²)
    pull    = pull((H - h) · share, step) + compute of n - H      share: pulls on the busier of both links, this one too
    seconds = wait + min(compute, cheapest pull)

    price   = seconds
            + computing · (thrift + foresight · unanswered + patience · decoding)     what computing holds up on d
            + compute · turnover                                                      what falls out of d's caches
            + patience · (answer + decoding ÷ 2 · slowing), less the least of all     what decoding here costs

The price is what is compared, because the soonest first token for one is not the soonest for all. A second of computing
is a second for those that come to d while it lasts, about as many as are `unanswered` there now, and for those that
decode there, whose steps it stretches. One more answer slows the other answers by what the fleet's have shown, for half
of their length on average. Where caches are full, what comes takes the place of what somebody will want again, whether
it is computed or pulled: it is taken to be worth what computing it costs, in the share in which blocks are replaced.
Even an idle pod with room does not compute for nothing what is elsewhere: `thrift`.

`patience` is what a second of somebody's answer is worth beside one before a first token. It is small, and still what
spreads one hot prefix over pods before the pod that holds it is slow.

Sources are the few best offers, so that the whole is O(candidates). What others than this gateway do shows in what pods
say: requests that wait or run there beyond this gateway's own count as well.

Pure. Everything is in seconds and tokens.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from scorers.base import Candidate, PlacementRequest
from scorers.costs import Costs, Link, Prefill, Pull, Rank
from scorers.kv_source import draw, pullable_tokens, same_engine
from scorers.samples import Timed

Factor = Annotated[float, Meta(ge=0, le=100)]
FORESIGHT: Final = 1.0
PATIENCE: Final = 0.1
THRIFT: Final = 0.05

_OFFERS: Final = 4
"""Sources that are looked at for each candidate: the cheapest ones for whoever holds nothing."""

_STEP_TOKENS: Final = 8192
"""What an engine computes in one step at most, by default: how long a busy source takes to answer."""

_MOST_TRIED: Final = 0.5

_MOST_HELD_UP: Final = 12
"""Unanswered requests that count: a queue that is longer says that work is short of pods, not where it should go."""


class Expected(NamedTuple):
    """What is expected of one candidate."""

    seconds: float
    """Until the first token."""
    price: float
    """Seconds, with those that others lose."""
    source: Candidate | None
    """The peer to pull from; None: it computes what it lacks."""


class Try(NamedTuple):
    """A pull whose price is not known yet, and by how much it is expected to be dearer than computing."""

    source: Candidate
    extra_s: float


class _Offer(NamedTuple):
    """What a source serves: `left` and `left_square` are what remains to be computed behind its tokens."""

    source: Candidate
    peer: Rank
    tokens: int
    left: int
    left_square: int
    step_s: float
    links: Mapping[Rank, Link]


_SECONDS: Final = itemgetter(0)


class Forecast:
    """Expectations for one request. Without costs, what is believed of a fleet that never was seen.

    `consumers`: those of the candidates that will be asked about, None: all. O(candidates).
    """

    __slots__ = (
        "_costs",
        "_floor",
        "_foresight",
        "_hosts",
        "_longest",
        "_most",
        "_now",
        "_offers",
        "_patience",
        "_tokens",
    )

    def __init__(
        self,
        request: PlacementRequest,
        candidates: Sequence[Candidate],
        foresight: float,
        patience: float,
        consumers: Sequence[Candidate] | None = None,
    ) -> None:
        self._tokens = request.prompt_tokens or 0
        self._most = max(0, self._tokens - 1)
        self._costs = request.costs or Costs()
        self._now = request.now
        self._floor = request.pull_floor or request.block_size
        self._foresight, self._patience = foresight, patience
        self._offers = self._best_offers(request, candidates, consumers or candidates) if request.pulls else []
        self._hosts = {offer.source.p2p_host for offer in self._offers}
        self._longest = max([offer.tokens for offer in self._offers], default=0)

    def of(self, candidate: Candidate) -> Expected:
        """For one of the consumers. O(1)."""
        (expected,) = self._expected([candidate])
        return Expected(*expected)

    def prices(self, candidates: Sequence[Candidate]) -> list[float]:
        """For consumers, in their order. O(candidates)."""
        return [price for _, price, _ in self._expected(candidates)]

    def leads(self, candidate: Candidate) -> bool:
        """Whether somebody else leads one of the consumers by the floor, at whatever cost. O(1)."""
        least = self._held(candidate) + self._floor
        return any(offer.tokens >= least and not same_engine(offer.source, candidate) for offer in self._offers)

    def try_of(self, candidate: Candidate) -> Try | None:
        """The pull to that candidate that would teach most for what may be spent on it; None: there is none. O(1).

        It costs the request at most `_MOST_TRIED` of the time that it takes in any case.
        """
        rank, held, known = (candidate.pod, candidate.rank), self._held(candidate), self._costs.known
        unknown = [offer for offer in self._offers if not known(offer.peer, rank, self._now)]
        if not unknown:
            return None
        expected, prefill = self.of(candidate), self._costs.prefill(rank)
        wait = _wait_s(candidate, prefill) + prefill.decode * _decoding(candidate)
        most, best = min(self._costs.allowance_s, _MOST_TRIED * expected.seconds), None
        for offer in unknown:
            seconds, _, source = self._cheapest(candidate, rank, held, 1.0, inf, [offer])
            extra = wait + seconds - expected.seconds
            if source is not None and extra <= most:
                best, most = Try(source, max(0.0, extra)), extra
        return best

    def _expected(self, candidates: Sequence[Candidate]) -> list[tuple[float, float, Candidate | None]]:
        """The fields of `Expected`. What does not depend on the candidate is worked out before the loop."""
        tokens, foresight, patience = self._tokens, self._foresight, self._patience
        square, reach, prefill_of = tokens * tokens, self._longest - self._floor, self._costs.prefill
        answer = self._costs.answer()
        slowing = answer.request + answer.context * tokens
        for_decoding = patience * (answer.request + 0.5 * slowing)
        for_unanswered, for_context = patience * answer.request, patience * answer.context
        decodings = [_decoding(candidate) for candidate in candidates]
        slowed = [
            for_decoding * decoding
            + for_unanswered * candidate.in_flight_unanswered
            + for_context * candidate.in_flight_context
            for candidate, decoding in zip(candidates, decodings, strict=True)
        ]
        least = min(slowed, default=0.0)
        found: list[tuple[float, float, Candidate | None]] = []
        for candidate, decoding, answering in zip(candidates, decodings, slowed, strict=True):
            rank = candidate.pod, candidate.rank
            fixed, token, quadratic, decode = prefill = prefill_of(rank)
            held = self._held(candidate)
            wait = _wait_s(candidate, prefill) + decode * decoding
            seconds = fixed + token * (tokens - held) + quadratic * (square - held * held)
            filling = candidate.turnover * seconds  # whoever brings the blocks there
            worth = 1.0 + THRIFT + foresight * min(_MOST_HELD_UP, candidate.in_flight_unanswered) + patience * decoding
            price, source = worth * seconds, None
            if held <= reach:
                seconds, price, source = self._cheapest(candidate, rank, held, worth, seconds, self._offers)
            found.append((wait + seconds, wait + price + filling + answering - least, source))
        return found

    def _held(self, candidate: Candidate) -> int:
        held, speculative = candidate.any_tokens, candidate.speculative_tokens
        if candidate.credit < 1.0:
            held = int(candidate.credit * held)
        if speculative > held:  # noqa: PLR1730 - a third of the time, and called for each candidate
            held = speculative
        return held if held < self._most else self._most  # noqa: FURB136 - likewise

    def _cheapest(
        self, consumer: Candidate, rank: Rank, held: int, worth: float, seconds: float, offers: Sequence[_Offer]
    ) -> tuple[float, float, Candidate | None]:
        """Seconds to have it all, what these are worth, and the source: in `seconds` without one, or by an offer.

        Of those that lead by the floor, and are not the consumer's own. O(offers).
        """
        fixed, token, square, _ = self._costs.prefill(rank)
        least, pulls, usual = held + self._floor, consumer.pulls, self._costs.usual_pull()
        own, price, best = consumer.p2p_host in self._hosts, worth * seconds, None
        for source, _, tokens, left, left_square, step_s, links in offers:
            if tokens < least or (own and same_engine(source, consumer)):
                continue
            link, serving = links.get(rank), source.serving
            begin, each, step, setup = usual if link is None else link.fit.coefficients
            share = 1 + (serving if serving > pulls else pulls)  # noqa: FURB136 - as in `_held`
            pulling = begin + each * (tokens - held) * share + step * step_s
            if link is None or not link.met:
                pulling += setup
            rest = fixed + token * left + square * left_square
            if pulling + worth * rest < price:
                seconds, price, best = pulling + rest, pulling + worth * rest, source
        return seconds, price, best

    def _best_offers(
        self, request: PlacementRequest, candidates: Sequence[Candidate], consumers: Sequence[Candidate]
    ) -> list[_Offer]:
        """The cheapest for whoever holds nothing, of those that lead a consumer by the floor."""
        holders = [each for each in candidates if each.cpu_tokens >= self._floor or not each.tiered]
        if not holders:
            return []
        costs, size, most, everything = self._costs, request.block_size, self._most, self._tokens
        prefill, pull = costs.usual_prefill(), costs.usual_pull()
        least = min(map(self._held, consumers)) + self._floor
        asking: list[tuple[float, Candidate, int]] = []
        for source in holders:
            tokens = min(pullable_tokens(source), most) // size * size
            if tokens >= least:
                left, pulled = everything - tokens, tokens * (1 + source.serving)
                seconds = prefill.token * left + prefill.square * left * (everything + tokens)
                asking.append((seconds + pull.token * pulled, source, tokens))
        asking.sort(key=_SECONDS)
        best: list[tuple[float, Candidate, int, float]] = []
        for seconds, source, tokens in asking:
            if len(best) >= _OFFERS and seconds > best[_OFFERS - 1][0]:
                break  # even if it is idle
            step_s = _step_s(source, costs.prefill((source.pod, source.rank)))
            insort(best, (seconds + pull.step * step_s, source, tokens, step_s), key=_SECONDS)
        if len({each[0] for each in best}) < len(best):
            best.sort(key=lambda each: (each[0], draw(request.request_id, each[1])))
        return [self._offer(source, tokens, step_s) for _, source, tokens, step_s in best[:_OFFERS]]

    def _offer(self, source: Candidate, tokens: int, step_s: float) -> _Offer:
        peer, everything = (source.pod, source.rank), self._tokens
        left_square = everything * everything - tokens * tokens
        return _Offer(source, peer, tokens, everything - tokens, left_square, step_s, self._costs.links(peer))


def require_factors(foresight: float, patience: float) -> None:
    """Raise ValueError unless both are in 0 … 100 (decoding lets .nan of YAML through)."""
    for factor in (foresight, patience):
        if not 0 <= factor <= 100:
            raise ValueError(f"foresight and patience must be in 0 … 100, not {factor}")


def timed(
    costs: Costs, consumer: Candidate, context: int, computing: tuple[int, int], source: Candidate | None, lead: int
) -> Timed:
    """What a request makes `consumer` do, to be timed. O(1).

    `context` is the prompt's length, `computing` are m and n² - h², `lead` is what it pulls.
    """
    rank = consumer.pod, consumer.rank
    terms = Prefill(1.0, float(computing[0]), float(computing[1]), float(_decoding(consumer)))
    if source is None:
        return Timed(rank, context, terms)
    peer = source.pod, source.rank
    step_s = _step_s(source, costs.prefill(peer))
    pulling = Pull(1.0, float(lead * _share(source, consumer)), step_s, 0.0 if costs.met(peer, rank) else 1.0)
    return Timed(rank, context, terms, peer, pulling, _wait_s(consumer, costs.prefill(rank)))


def _share(source: Candidate, consumer: Candidate) -> int:
    return 1 + max(source.serving, consumer.pulls)


def _step_s(source: Candidate, prefill: Prefill) -> float:
    """Seconds of the step that a source is in: of what it has to compute as much as fits into one."""
    seconds = prefill.decode * _decoding(source)
    if tokens := source.in_flight_tokens:
        backlog = prefill.seconds(tokens, source.in_flight_square, source.in_flight_unanswered)
        seconds += backlog * min(1.0, _STEP_TOKENS / tokens)
    return seconds


def _wait_s(candidate: Candidate, prefill: Prefill) -> float:
    """Until what is before it is computed. Strangers' requests are as long as this gateway's own there."""
    unanswered, strangers = candidate.in_flight_unanswered, (candidate.waiting or 0) - candidate.in_flight_requests
    if strangers < 0:  # noqa: PLR1730 - as in `_held`
        strangers = 0
    if not unanswered:
        return strangers * prefill.fixed
    backlog = prefill.seconds(candidate.in_flight_tokens, candidate.in_flight_square, unanswered)
    each = backlog / unanswered
    return backlog - min(candidate.progress_s, each) + strangers * each


def _decoding(candidate: Candidate) -> int:
    own, running = candidate.in_flight_requests, candidate.running
    if running is not None and running > own:
        own = running
    return own - candidate.in_flight_unanswered
