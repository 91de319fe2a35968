"""When a request's first token comes, if a candidate computes it: and from whom it would best pull what it lacks.

For a candidate d that holds h of n prompt tokens, alone or with a source s that holds H > h of them:

    wait    = prefill of what d has not answered yet, less what the first of it has had already
    compute = prefill(n - h, n² - h²)
    pull    = pull((H - h) · share, step) + compute of n - H      share: pulls on the busier of both links, this one too
    joined  = what a pull takes that is under way to d + compute of what that does not bring
    seconds = wait + min(compute, cheapest pull), or where such a pull is, min(compute, joined)

    price   = seconds
            + caution · pull - relief · (unanswered · wait ÷ (1 + serving)²) of s     a pull's risk, and its use
            + computing · (thrift + foresight · (unanswered + awaited) + patience · decoding)   what it holds up on d
            + compute · turnover                                                      what falls out of d's caches
            + 3 · patience · decoding · answer · room, where d pulls                  what its copy displaces on d's GPU
            + patience · (answer + decoding ÷ 2 · slowing), less the least of all     what decoding here costs

The price is what is compared, because the soonest first token for one is not the soonest for all. A second of computing
is a second for those that come to d while it lasts, about as many as are `unanswered` there now, for those that wait
elsewhere for what is pulled from d, which answers between steps, and for those that decode there, whose steps it
stretches. One more answer slows the other answers by what the fleet's have shown, for half
of their length on average. Where caches are full, what comes takes the place of what somebody will want again, whether
it is computed or pulled: it is taken to be worth what computing it costs, in the share in which blocks are replaced.
A pull's copy holds `room` as well, the share of d's GPU blocks that what is not on that GPU takes, until its answer
ends, while requests that begin like others there hold that once: where long answers decode, these blocks are what there
is too little of, and who has none waits, whoever computes. Even an idle pod with room does not compute for nothing what
is elsewhere: `thrift`.

A pull keeps two pods busy and may take longer than expected, so to make one its seconds count for more: `caution`. And
it leaves another copy. Where many wait at the source for the same prompt's beginning, as many may come after them, and
find less of a queue at both: `relief` of what those wait now, less where others fetch a copy already, and never more
than what pulling costs. An engine moves blocks once, so who comes to a pod after a pull waits for it, and that costs no
link anything. To even out answers is no reason to pull what nobody else wants: it counts as answered where that costs
more, at d or s, and what it computes as stretching the steps of as many as decode where more do.

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
from scorers.costs import Costs, Link, Rank
from scorers.kv_source import draw, pullable_tokens, same_engine
from scorers.work import decoding_requests, held_tokens, step_seconds, wait_seconds

Factor = Annotated[float, Meta(ge=0, le=100)]
FORESIGHT: Final = 1.0
PATIENCE: Final = 0.1
THRIFT: Final = 0.05

_WORTH: Final = 1.0 + THRIFT

_OFFERS: Final = 4
"""Sources that are looked at for each candidate: the cheapest ones for whoever holds nothing."""

_MOST_TRIED: Final = 0.5

_CAUTION: Final = 0.5
_RELIEF: Final = 1.0
_ROOM: Final = 3.0

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
    """What a source serves: `left` and `left_square` are what remains to be computed behind its tokens.

    `relief_s`: what another copy of them is worth to those who come next.
    """

    source: Candidate
    peer: Rank
    tokens: int
    left: int
    left_square: int
    step_s: float
    relief_s: float
    links: Mapping[Rank, Link]


_SECONDS: Final = itemgetter(0)
_NO_HOSTS: Final = frozenset[str | None]()


class Forecast:
    """Expectations for one request. Without costs, what is believed of a fleet that never was seen.

    `consumers`: those of the candidates that will be asked about, None: all. O(candidates).
    """

    __slots__ = (
        "_barred",
        "_candidates",
        "_costs",
        "_floor",
        "_foresight",
        "_hosts",
        "_longest",
        "_most",
        "_now",
        "_offers",
        "_patience",
        "_pulls",
        "_size",
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
        self._candidates = candidates
        self._tokens = tokens = request.prompt_tokens or 0
        self._most = tokens - 1 if tokens else 0
        self._costs = request.costs or Costs()
        self._now = request.now
        self._floor = request.pull_floor or request.block_size
        self._foresight, self._patience = foresight, patience
        self._pulls, self._size = request.pulls, request.block_size
        self._offers = self._best_offers(request, candidates, consumers or candidates) if request.pulls else []
        self._hosts, self._longest = _NO_HOSTS, 0
        if self._offers:
            self._hosts = frozenset([offer.source.p2p_host for offer in self._offers])
            self._longest = max([offer.tokens for offer in self._offers])
        self._barred = request.barred
        if request.barred is not None:
            # Every consumer may be one that must not pull: each is looked at like one whose host is a source's.
            self._hosts |= {consumer.p2p_host for consumer in consumers or candidates}

    @property
    def offers(self) -> bool:
        """Whether anybody has anything that is worth looking at, for any of the consumers. O(1)."""
        return bool(self._offers)

    def of(self, candidate: Candidate) -> Expected:
        """For one of the consumers. O(1)."""
        ((seconds, price, source),), least = self._expected([candidate])
        return Expected(seconds, price - least, source)

    def prices(self, candidates: Sequence[Candidate], slack: float = 0.0) -> list[float]:
        """For consumers, in their order, each and so many seconds more. O(candidates)."""
        found, least = self._expected(candidates)
        return [price - least + slack for _, price, _ in found]

    def leads(self, candidate: Candidate) -> bool:
        """Whether somebody else leads one of the consumers by the floor, at whatever cost. O(1)."""
        least = held_tokens(candidate, self._most) + self._floor
        return any(offer.tokens >= least and not same_engine(offer.source, candidate) for offer in self._offers)

    def try_of(self, candidate: Candidate) -> Try | None:
        """The pull to that candidate that would teach most for what may be spent on it; None: there is none. O(1).

        It costs the request at most `_MOST_TRIED` of the time that it takes in any case.
        """
        rank, held, known = (candidate.pod, candidate.rank), held_tokens(candidate, self._most), self._costs.known
        unknown = [offer for offer in self._offers if not known(offer.peer, rank, self._now)]
        if not unknown:
            return None
        expected, prefill = self.of(candidate), self._costs.prefill(rank)
        wait = wait_seconds(candidate, prefill) + prefill.decode * decoding_requests(candidate)
        most, best = min(self._costs.allowance_s, _MOST_TRIED * expected.seconds), None
        for offer in unknown:
            seconds, _, source = self._cheapest(candidate, rank, held, 1.0, inf, [offer])
            extra = wait + seconds - expected.seconds
            if source is not None and extra <= most:
                best, most = Try(source, max(0.0, extra)), extra
        return best

    def _expected(self, candidates: Sequence[Candidate]) -> tuple[list[tuple[float, float, Candidate | None]], float]:
        """The fields of `Expected`, and by how much less each price is: what decoding costs where it costs least.

        What does not depend on the candidate is worked out before the loop.
        """
        tokens, most, foresight, patience = self._tokens, self._most, self._foresight, self._patience
        square, reach, prefill_of = tokens * tokens, self._longest - self._floor, self._costs.prefill
        answer = self._costs.answer()
        for_answer = patience * answer.fixed
        for_unanswered, for_context = patience * answer.request, patience * answer.context
        for_decoding = for_unanswered + 0.5 * (for_unanswered + for_context * tokens)
        found: list[tuple[float, float, Candidate | None]] = []
        least = inf
        for candidate in candidates:
            rank, unanswered = (candidate.pod, candidate.rank), candidate.in_flight_unanswered
            fixed, token, quadratic, decode = prefill = prefill_of(rank)
            held, source = held_tokens(candidate, most), None
            wait, slowed = wait_seconds(candidate, prefill), for_unanswered * unanswered
            seconds = fixed + token * (tokens - held) + quadratic * (square - held * held)
            held_up = unanswered if unanswered < _MOST_HELD_UP else _MOST_HELD_UP  # noqa: FURB136 - for speed
            worth = _WORTH + foresight * (held_up + candidate.awaited)
            own, running = candidate.in_flight_requests, candidate.running  # as `decoding_requests`, without a call
            decoding = (running if running is not None and running > own else own) - unanswered
            if decoding:
                wait += decode * decoding
                worth += patience * decoding
                slowed = for_decoding * decoding + slowed
            if context := candidate.in_flight_context:
                slowed += for_context * context
            filling = candidate.turnover * seconds  # whoever brings the blocks there
            price = worth * seconds
            if candidate.coming_tokens >= held + self._floor and self._pulls:  # a pull of its own would move nothing
                seconds, price, source = self._joined(candidate, held, worth, (seconds, price, None))
            elif held <= reach:
                seconds, price, source = self._cheapest(candidate, rank, held, worth, seconds, self._offers)
                if source is not None and decoding and (most_there := candidate.kv_tokens):
                    lasts = for_answer + for_unanswered * decoding + for_context * context
                    filling += _ROOM * decoding * lasts * (tokens - candidate.gpu_tokens) / most_there
            if slowed < least:  # noqa: PLR1730 - for speed
                least = slowed
            if source is not None and source.speculative_tokens < held + self._floor:
                # To even out answers is no reason to pull what nobody else wants.
                there = decoding_requests(source)
                beside = for_unanswered * source.in_flight_unanswered + for_context * source.in_flight_context
                slowed = max(slowed, for_decoding * there + beside)
                if there > decoding:
                    price += patience * (there - decoding) * self._rest(candidate, source)
            found.append((wait + seconds, wait + price + filling + slowed, source))
        return found, least

    def _cheapest(
        self, consumer: Candidate, rank: Rank, held: int, worth: float, seconds: float, offers: Sequence[_Offer]
    ) -> tuple[float, float, Candidate | None]:
        """Seconds to have it all, what these are worth, and the source: in `seconds` without one, or by an offer.

        Of those that lead by the floor, and are not the consumer's own. O(offers).
        """
        fixed, token, square, _ = self._costs.prefill(rank)
        least, pulls, usual = held + self._floor, consumer.pulls, self._costs.usual_pull()
        own, least_s, best = consumer.p2p_host in self._hosts, worth * seconds, None
        price = least_s
        for source, _, tokens, left, left_square, step_s, relief_s, links in offers:
            if tokens < least or (own and (same_engine(source, consumer) or self._bars(source, consumer))):
                continue
            link, serving = links.get(rank), source.serving
            begin, each, step, setup = usual if link is None else link.fit.coefficients
            share = 1 + (serving if serving > pulls else pulls)  # noqa: FURB136 - for speed
            pulling = begin + each * (tokens - held) * share + step * step_s
            if link is None or not link.met:
                pulling += setup
            rest = fixed + token * left + square * left_square
            if pulling + worth * rest < least_s:
                seconds, least_s, best = pulling + rest, pulling + worth * rest, source
                price = least_s + max(_CAUTION * pulling - relief_s, -pulling)
        return seconds, price, best

    def _joined(
        self, candidate: Candidate, held: int, worth: float, alone: tuple[float, float, None]
    ) -> tuple[float, float, Candidate | None]:
        """As `_cheapest`, if it waits for what comes there anyway; or `alone`, which is cheaper. O(candidates)."""
        source = self._origin(candidate)
        if source is None or same_engine(source, candidate) or self._bars(source, candidate):
            return alone
        tokens, had = self._tokens, min(candidate.coming_tokens, pullable_tokens(source), self._most)
        had = had // self._size * self._size
        if had < held + self._floor:
            return alone
        prefill = self._costs.prefill((candidate.pod, candidate.rank))
        rest = prefill.seconds(tokens - had, tokens * tokens - had * had)
        price = candidate.coming_s + worth * rest
        return (candidate.coming_s + rest, price, source) if price < alone[1] else alone

    def _rest(self, candidate: Candidate, source: Candidate) -> float:
        """Seconds to compute what the source does not serve either. O(1)."""
        tokens, served = self._tokens, min(pullable_tokens(source), self._most) // self._size * self._size
        prefill = self._costs.prefill((candidate.pod, candidate.rank))
        return prefill.seconds(tokens - served, tokens * tokens - served * served)

    def _origin(self, candidate: Candidate) -> Candidate | None:
        """Where what comes to it comes from, if that is among the candidates. O(candidates)."""
        for each in self._candidates:
            if each.pod == candidate.coming_from and each.rank == candidate.coming_rank:
                return each
        return None

    def _bars(self, source: Candidate, consumer: Candidate) -> bool:
        return self._barred is not None and self._barred.bars(source, consumer)

    def _best_offers(
        self, request: PlacementRequest, candidates: Sequence[Candidate], consumers: Sequence[Candidate]
    ) -> list[_Offer]:
        """The cheapest for whoever holds nothing, of those that lead a consumer by the floor."""
        most, floor = self._most, self._floor
        if most < floor:
            return []
        holders = holders_of(floor, candidates)
        if (barred := request.barred) is not None:
            holders = [each for each in holders if not all(barred.bars(each, consumer) for consumer in consumers)]
        if not holders:
            return []
        least = min([held_tokens(consumer, most) for consumer in consumers]) + floor
        if least > most:
            return []
        costs, size, everything = self._costs, request.block_size, self._tokens
        prefill, pull = costs.usual_prefill(), costs.usual_pull()
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
            step_s = step_seconds(source, costs.prefill((source.pod, source.rank)))
            insort(best, (seconds + pull.step * step_s, source, tokens, step_s), key=_SECONDS)
        if len({each[0] for each in best}) < len(best):
            best.sort(key=lambda each: (each[0], draw(request.request_id, each[1])))
        return [self._offer(source, tokens, step_s) for _, source, tokens, step_s in best[:_OFFERS]]

    def _offer(self, source: Candidate, tokens: int, step_s: float) -> _Offer:
        peer, everything = (source.pod, source.rank), self._tokens
        left, left_square, relief_s = everything - tokens, everything * everything - tokens * tokens, 0.0
        if source.in_flight_unanswered and source.speculative_tokens >= tokens:
            waiting_s = source.in_flight_unanswered * wait_seconds(source, self._costs.prefill(peer))
            relief_s = _RELIEF * waiting_s / (1 + source.serving) ** 2
        return _Offer(source, peer, tokens, left, left_square, step_s, relief_s, self._costs.links(peer))


def holders_of(tokens: int, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that may serve a peer so many tokens, as far as their counts say. O(candidates)."""
    return [each for each in candidates if each.cpu_tokens >= tokens or not each.tiered]


def require_factors(foresight: float, patience: float) -> None:
    """Raise ValueError unless both are in 0 … 100 (decoding lets .nan of YAML through)."""
    for factor in (foresight, patience):
        if not 0 <= factor <= 100:
            raise ValueError(f"foresight and patience must be in 0 … 100, not {factor}")
