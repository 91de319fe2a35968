"""What a fleet's work costs, learned from its answers: seconds of prefill per rank, of a pull per pair of ranks.

    prefill(m, k, c) = fixed + a · m + b · k + d · c     m tokens computed, k = n² - h² of a prompt of n tokens of
                                                         which h are held, c requests that decode beside it
    answer(c, x)     = fixed + a · c + b · x             seconds from first to last token beside c requests that decode
                                                         behind x tokens of prompts
    pull(t, u, v)    = fixed + a · t + b · u + c · v     t tokens over one link at its share, u seconds of the step
                                                         that the source is in, between which it answers, v = 1 where
                                                         the pair has to set up a connection first, else 0

The square is attention: a chunk of m tokens behind h others costs m² + 2·m·h, which sums to n² - h² however a prompt is
cut.

Each rank and each ordered pair has a fit of its own, whose prior is what the whole fleet's samples say, whose prior in
turn is `Priors`. So a pod that comes up costs what others do until it has shown otherwise, and one slow link stands
out.

Source: the step model and the ladders of published measurements, see docs/placement.md. Pure: time is an argument.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import sqrt
from typing import Any, Final, NamedTuple

from msgspec import Struct

from scorers.fit import Exact, Fit, Kept

Rank = tuple[str, int]
"""A pod's URL and a rank of it, as `Candidate` has them."""

_COMPUTED: Final = 50
"""Prompts that an engine's speed is taken from: it changes with what it is given, hardly with time."""

_PULLED: Final = 20
"""Pulls that a link's speed is taken from: a link may get slow from one moment to the next."""

_ANSWERED: Final = 200
"""Answers: their lengths differ a lot."""

_KNOWN: Final = 3.0
"""Pulls after which a pair's price is believed; before, a pull that seems dear may be tried."""

MOST_TRIES_S: Final = 1.0
"""What tries may cost beyond the cheapest expectation: this much at first and at most,"""
_TRIES: Final = 0.005
"""and this share of all that was expected."""

_SLOWED: Final = 1.7
"""A link counts as slowed when pulls of the size of late have lately taken so many times as long as they usually do.

Of another size nothing may be known: what pulls of some hundred tokens say of thousands is mostly their noise.
"""

_SLOWED_EVIDENCE: Final = 10.0

_LATELY: Final = 0.1
_USUALLY: Final = 0.003
_FIRST: Final = 50
"""What a link has taken lately and usually are means by these shares, over ten pulls and over some three hundred; the
latter, of the first so many, is that of all."""

_LONGEST: Final = 1e9
"""Tokens: what pays from there on only, never does."""


class Prefill(NamedTuple):
    """Coefficients, in seconds. The defaults are between those of published engines on large accelerators."""

    fixed: float = 0.03
    token: float = 3e-5
    square: float = 3e-10
    decode: float = 1e-4

    def seconds(self, tokens: float, square: float, requests: float = 1.0) -> float:
        """To compute so many tokens of so many requests, alone. O(1)."""
        return self.fixed * requests + self.token * tokens + self.square * square


class Pull(NamedTuple):
    """Coefficients, in seconds; `step` is a factor on the seconds that the source's steps take."""

    fixed: float = 0.03
    token: float = 5e-6
    step: float = 1.5
    setup: float = 0.2

    def seconds(self, tokens: float, step_s: float, *, met: bool = True) -> float:
        """To pull what moves like so many tokens on a link of its own. O(1)."""
        seconds = self.fixed + self.token * tokens + self.step * step_s
        return seconds if met else seconds + self.setup


class Answer(NamedTuple):
    """Coefficients, in seconds: of an answer of the usual length."""

    fixed: float = 2.0
    request: float = 0.02
    context: float = 1e-6


class Priors(Struct, frozen=True):
    """What is believed before there is any sample."""

    prefill: Prefill = Prefill()
    pull: Pull = Pull()
    answer: Answer = Answer()


class PullPrice(NamedTuple):
    """What is known of a pair: `crossover` is from how many tokens on a pull pays, None: never."""

    source: Rank
    consumer: Rank
    pull: Pull
    evidence: float
    crossover: int | None
    slowed: bool


class CostChanges(Struct, frozen=True, kw_only=True):
    """What a copy of the costs has to be told to go on expecting the same. `exact` None: that one is forgotten.

    `whole`: nothing that it knew before counts any more. Where it is not `complete`, it has to be told more first.
    """

    whole: bool
    complete: bool = True
    allowance_s: float
    usual: tuple[Exact, Exact, Exact]
    ranks: list[tuple[Rank, Exact | None]]
    links: list[tuple[Rank, Rank, bool, Exact | None]]


class Link:
    """A pair's fit, whether its connection stands, and what its pulls take lately and usually."""

    __slots__ = ("_counted", "_lately", "_moved", "_usually", "fit", "met")

    def __init__(self, fit: Fit[Pull]) -> None:
        self.fit = fit
        self.met = False
        self._lately = self._usually = (0.0, 0.0)  # seconds: the fixed ones, and those of a token
        self._moved = (0.0, 0.0)  # tokens, and their square, of late
        self._counted = 0

    def observe(self, terms: Pull, seconds: float, now: float, beside: float) -> None:
        """A pull over it took so many seconds."""
        self.fit.observe(terms, seconds, now, beside)
        if self.fit.evidence(now) >= _SLOWED_EVIDENCE:
            self._counted += 1
            alike = 1.0 / self._counted
            lately, usually = max(_LATELY, alike), alike if self._counted <= _FIRST else _USUALLY
            believed = self.fit.coefficients.fixed, self.fit.coefficients.token
            self._lately = _nearer(self._lately, believed, lately)
            self._usually = _nearer(self._usually, believed, usually)
            self._moved = _nearer(self._moved, (terms.token, terms.token * terms.token), lately)

    def slowed(self) -> bool:
        """Whether pulls take much longer than they usually did. O(1)."""
        tokens, squares = self._moved
        size = squares / max(1.0, tokens)  # that by which most tokens move: large pulls count for more
        lately, usually = (fixed + each * size for fixed, each in (self._lately, self._usually))
        return lately > _SLOWED * usually


_UNUSED: Final[Mapping[Rank, Link]] = {}


class Costs:
    """All that was learned. Bounded by the fleet: a fit per rank, and per pair that has pulled; see `keep`."""

    def __init__(self, priors: Priors | None = None) -> None:
        self._priors = priors = priors or Priors()
        self._prefill = Fit(priors.prefill, _COMPUTED, one_scale=True)
        self._pull = Fit(priors.pull, _PULLED)
        self._answer = Fit(priors.answer, _ANSWERED)
        self._ranks: dict[Rank, Fit[Prefill]] = {}
        self._links: dict[Rank, dict[Rank, Link]] = {}  # by source, then consumer
        self.allowance_s = MOST_TRIES_S
        """What a pull may cost beyond the cheapest expectation, to learn what it costs. Never below 0."""
        self._noted: set[tuple[Rank, ...]] | None = None  # ranks and pairs that changed; None: nobody wants to know

    def prefill(self, rank: Rank) -> Prefill:
        """What computing costs there. O(1)."""
        return self._ranks.get(rank, self._prefill).coefficients

    def answer(self) -> Answer:
        """What an answer takes anywhere in the fleet. O(1)."""
        return self._answer.coefficients

    def usual_prefill(self) -> Prefill:
        """What computing costs in the fleet. O(1)."""
        return self._prefill.coefficients

    def usual_pull(self) -> Pull:
        """What a pull costs between two that have not pulled yet, but for the connection. O(1)."""
        return self._pull.coefficients

    def links(self, source: Rank) -> Mapping[Rank, Link]:
        """Those over which pulls from this source have gone, by who pulled. O(1)."""
        return self._links.get(source, _UNUSED)

    def pull(self, source: Rank, consumer: Rank) -> Pull:
        """What a pull costs between them. O(1)."""
        link = self.links(source).get(consumer)
        return self._pull.coefficients if link is None else link.fit.coefficients

    def met(self, source: Rank, consumer: Rank) -> bool:
        """Whether they have pulled, so that no connection has to be set up. O(1)."""
        link = self.links(source).get(consumer)
        return link is not None and link.met

    def known(self, source: Rank, consumer: Rank, now: float) -> bool:
        """Whether the price of their pulls rests on pulls, their own or the fleet's. O(1)."""
        link = self.links(source).get(consumer)
        return (self._pull if link is None else link.fit).evidence(now) >= _KNOWN

    def expected(self, seconds: float, tried_s: float) -> None:
        """A request was placed with this expectation, `tried_s` of which are for trying what a pull costs. O(1)."""
        allowance_s = self.allowance_s + _TRIES * seconds
        left = (allowance_s if allowance_s < MOST_TRIES_S else MOST_TRIES_S) - tried_s  # noqa: FURB136 - for speed
        self.allowance_s = left if left > 0.0 else 0.0  # noqa: FURB136 - likewise

    def computed(self, rank: Rank, terms: Prefill, seconds: float, now: float) -> None:
        """A rank has computed something in so many seconds; `terms` are the factors beside each coefficient."""
        fit = self._ranks.get(rank)
        if fit is None:
            fit = self._ranks[rank] = Fit(self._prefill, _COMPUTED, one_scale=True)
        self._prefill.observe(terms, seconds, now)
        fit.observe(terms, seconds, now)
        if self._noted is not None:
            self._noted.add((rank,))

    def answered(self, terms: Answer, seconds: float, now: float) -> None:
        """An answer took so many seconds from its first token on."""
        self._answer.observe(terms, seconds, now)

    def pulled(
        self, source: Rank, consumer: Rank, terms: Pull, seconds: float, now: float, beside: float = 0.0
    ) -> None:
        """A pull took so many seconds, all in all; by now they have met.

        `beside`: what the request took besides, by what is believed; it may be off as well.
        """
        self._pull.observe(terms, seconds, now, beside)
        link = self._link(source, consumer)
        link.met = True
        link.observe(terms, seconds, now, beside)
        if self._noted is not None:
            self._noted.add((source, consumer))

    def tried(self, source: Rank, consumer: Rank) -> None:
        """A pull that says nothing of its price has come to its end; by now they have met again. O(1)."""
        link = self.links(source).get(consumer)
        if link is not None and not link.met:
            link.met = True
            if self._noted is not None:
                self._noted.add((source, consumer))

    def crossover(self, source: Rank, consumer: Rank) -> int | None:
        """From how many tokens on the consumer has them sooner by a pull than by computing, both idle; None: never.

        The root of b · n² + (a - t) · n - fixed = 0 with the prefill's a and b and the pull's t and fixed, in the form
        in which nothing cancels. O(1).
        """
        prefill, pull = self.prefill(consumer), self.pull(source, consumer)
        gain = prefill.token - pull.token
        root = sqrt(gain * gain + 4 * prefill.square * pull.fixed)
        above, below = (2 * pull.fixed, root + gain) if gain > 0 else (root - gain, 2 * prefill.square)
        return int(above / below) + 1 if above < _LONGEST * below else None

    def pairs(self, now: float) -> Iterator[PullPrice]:
        """All that have pulled. O(pairs)."""
        for source, consumer, link in self._all_links():
            crossover = self.crossover(source, consumer)
            evidence = link.fit.evidence(now)
            yield PullPrice(source, consumer, link.fit.coefficients, evidence, crossover, link.slowed())

    def slowed(self, source: Rank, consumer: Rank) -> bool:
        """Whether their pulls take much longer than they usually did, as when RDMA falls back to TCP. O(1)."""
        link = self.links(source).get(consumer)
        return link is not None and link.slowed()

    def evidence(self, rank: Rank, now: float) -> float:
        """How many samples the price of computing there rests on. O(1)."""
        fit = self._ranks.get(rank)
        return 0.0 if fit is None else fit.evidence(now)

    def parted(self, pod: str) -> None:
        """A pod's process is another one now: whoever pulls from it or to it sets up its connection anew. O(pairs)."""
        for source, consumer, link in self._all_links():
            if pod in (source[0], consumer[0]):
                link.met = False
                if self._noted is not None:
                    self._noted.add((source, consumer))

    def keep(self, pods: Iterable[str]) -> None:
        """Forget all other pods. O(pairs)."""
        known, before = set(pods), self._keys()
        self._ranks = {rank: fit for rank, fit in self._ranks.items() if rank[0] in known}
        self._links = {
            source: {consumer: link for consumer, link in links.items() if consumer[0] in known}
            for source, links in self._links.items()
            if source[0] in known
        }
        self._displaced(before)

    def state(self, now: float) -> dict[str, Any]:
        """What is worth keeping, as plain data; `restore` takes it. O(pairs)."""
        return {
            "prefill": self._prefill.state(now),
            "pull": self._pull.state(now),
            "answer": self._answer.state(now),
            "ranks": [[rank, fit.state(now)] for rank, fit in self._ranks.items()],
            "pairs": [[[source, consumer], link.fit.state(now)] for source, consumer, link in self._all_links()],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Begin with what another has learned, which displaces all that is known.

        Raises ValueError, KeyError or TypeError for what is no such thing, and has changed nothing then. O(pairs).
        """
        read = Costs(self._priors)
        read._read(kept)
        before = self._keys()
        self._prefill, self._pull, self._answer = read._prefill, read._pull, read._answer
        self._ranks, self._links = read._ranks, read._links
        self._displaced(before | self._keys())

    def follow(self, *, follows: bool = True) -> None:
        """Take note of what changes from now on, for `changes`; or no longer."""
        self._noted = set() if follows else None

    def changes(self, *, whole: bool = False, most: int | None = None) -> CostChanges:
        """What has changed since this was asked last; or all there is. O(what is told).

        Of so many ranks and pairs at `most`, to whoever follows; the next ones tell the rest.
        """
        noted = self._keys() if whole or self._noted is None else self._noted
        now = tuple(islice(noted, most))
        noted.difference_update(now)
        if self._noted is not None:
            self._noted = noted
        ranks: list[tuple[Rank, Exact | None]] = []
        links: list[tuple[Rank, Rank, bool, Exact | None]] = []
        for source, *consumers in now:
            if consumers:
                link = self.links(source).get(consumers[0])
                told = (False, None) if link is None else (link.met, link.fit.exact())
                links.append((source, consumers[0], *told))
            else:
                fit = self._ranks.get(source)
                ranks.append((source, None if fit is None else fit.exact()))
        usual = self._prefill.exact(), self._pull.exact(), self._answer.exact()
        return CostChanges(
            whole=whole,
            complete=not noted,
            allowance_s=self.allowance_s,
            usual=usual,
            ranks=ranks,
            links=links,
        )

    def become(self, changed: CostChanges) -> None:
        """Go on as a copy of the costs that tell this; such a copy learns nothing by itself. O(what is told).

        Raises ValueError or TypeError for what does not fit.
        """
        if changed.whole:
            self._ranks, self._links = {}, {}
        self.allowance_s = changed.allowance_s
        prefill, pull, answer = changed.usual
        self._prefill.become(prefill)
        self._pull.become(pull)
        self._answer.become(answer)
        for rank, told in changed.ranks:
            if told is None:
                self._ranks.pop(rank, None)
            else:
                self._ranks.setdefault(rank, Fit(self._prefill, _COMPUTED, one_scale=True)).become(told)
        for source, consumer, met, told in changed.links:
            if told is None:
                self._links.get(source, {}).pop(consumer, None)
            else:
                link = self._link(source, consumer)
                link.met = met
                link.fit.become(told)

    def _read(self, kept: Mapping[str, Any]) -> None:
        for name, fit in (("prefill", self._prefill), ("pull", self._pull), ("answer", self._answer)):
            fit.restore(Kept(*kept[name]).coefficients)
        for rank, state in kept["ranks"]:
            fit_of_rank = self._ranks[_rank(*rank)] = Fit(self._prefill, _COMPUTED, one_scale=True)
            fit_of_rank.restore(Kept(*state).coefficients)
        for (source, consumer), state in kept["pairs"]:
            self._link(_rank(*source), _rank(*consumer)).fit.restore(Kept(*state).coefficients)

    def _keys(self) -> set[tuple[Rank, ...]]:
        pairs = {(source, consumer) for source, consumer, _ in self._all_links()}
        return {(rank,) for rank in self._ranks} | pairs

    def _displaced(self, keys: set[tuple[Rank, ...]]) -> None:
        if self._noted is not None:
            self._noted |= keys

    def _all_links(self) -> Iterator[tuple[Rank, Rank, Link]]:
        for source, links in self._links.items():
            for consumer, link in links.items():
                yield source, consumer, link

    def _link(self, source: Rank, consumer: Rank) -> Link:
        links = self._links.setdefault(source, {})
        if (link := links.get(consumer)) is None:
            link = links[consumer] = Link(Fit(self._pull, _PULLED))
        return link


def _nearer(mean: tuple[float, float], to: tuple[float, float], share: float) -> tuple[float, float]:
    return mean[0] + share * (to[0] - mean[0]), mean[1] + share * (to[1] - mean[1])


def _rank(pod: object, rank: object) -> Rank:
    if not isinstance(pod, str) or not isinstance(rank, int):
        raise TypeError(f"a pod's URL and a rank are needed, not {pod!r} and {rank!r}")
    return pod, rank
