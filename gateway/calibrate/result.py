"""From measured times to costs, to the length from which a pull pays, and to a floor for the configuration: pure.

Costs are those of the gateway, learned by the same fits from the same kind of samples: a prompt of n tokens computed on
an idle pod, and a pull of t tokens, which is what the request took less what computing the rest of its prompt costs.
So what comes out can be handed to a gateway as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from scorers import Costs, Prefill, Pull

Transport = Literal["tcp", "rdma", "same-host", "unknown"]

_STEP: Final = ((1024, 64), (8192, 256))
_COARSEST: Final = 1024
"""What a recommended floor is rounded up to, by its size: no measurement is finer."""

_TCP_GB_PER_S: Final = 3.2
_RDMA_GB_PER_S: Final = 5.0
"""Published pulls bring 2.6 GB/s over TCP and 10 over RDMA; a 25 Gbit/s card ends at 3.1, whatever it speaks."""

_ENOUGH_BYTES: Final = 32 * 2**20
"""Of less the fixed cost is most, and says nothing of the network."""

_FURTHEST: Final = 4
"""Times the longest length."""

_PASSES: Final = 20
"""How often each is learned: a sample weighs by the model that it met, which is far off at first."""

_MISFIT: Final = 0.3
"""Share of a median by which the fit may miss it before that is told."""


class Rung(NamedTuple):
    """One measurement between two pods, in seconds. `moved_bytes` None: the pod does not count them."""

    source: int
    consumer: int
    tokens: int
    recompute: float
    pull: float
    local: float
    pulled_tokens: int
    moved_bytes: float | None = None


class Row(Struct, frozen=True):
    """The medians of a length one way; `fitted` ones are what the costs say."""

    tokens: int
    pulled_tokens: int
    samples: int
    recompute_ms: float
    pull_ms: float
    local_ms: float
    fitted_recompute_ms: float
    fitted_pull_ms: float
    moved_bytes: float | None

    @property
    def pays(self) -> bool:
        """Whether the pull was quicker."""
        return self.pull_ms < self.recompute_ms


class Way(Struct, frozen=True):
    """From one pod to the other. `crossover`: tokens from which a pull pays by the costs; `measured`: the first length
    from which it did at all longer ones, too. None: never.
    """

    source: str
    consumer: str
    first_pull_ms: float
    rows: tuple[Row, ...]
    prefill: dict[str, float]
    pull: dict[str, float]
    crossover: int | None
    measured_crossover: int | None
    gb_per_s: float | None
    transport: Transport


class Result(Struct, frozen=True):
    """All of it. `recommended`: for `p2p.min_cached_token_delta`; None: pulls do not pay both ways."""

    model: str
    rounds: int
    ways: tuple[Way, ...]
    recommended: int | None
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "model": self.model,
            "rounds": self.rounds,
            "pairs": self.ways,
            "recommended_min_cached_token_delta": self.recommended,
            "warnings": self.warnings,
        }


def learn(costs: Costs, urls: Sequence[str], rungs: Iterable[Rung]) -> None:
    """Have the costs know the medians of what was measured: what disturbed single measurements is none of the pods'.

    O(rungs).
    """
    samples = list(enumerate(_medians(rungs) * _PASSES))
    for now, rung in samples:
        terms = Prefill(1.0, rung.tokens, float(rung.tokens) ** 2, 0.0)
        costs.computed((urls[rung.consumer], 0), terms, rung.recompute, float(now))
    for now, rung in samples:
        consumer, held = (urls[rung.consumer], 0), rung.pulled_tokens
        rest = costs.prefill(consumer).seconds(*_rest(rung.tokens, held))
        terms_of_pull = Pull(1.0, held, 0.0, 0.0)
        costs.pulled((urls[rung.source], 0), consumer, terms_of_pull, rung.pull - rest, float(now), rest)


def _medians(rungs: Iterable[Rung]) -> list[Rung]:
    alike: dict[tuple[int, int, int], list[Rung]] = {}
    for rung in rungs:
        alike.setdefault(rung[:3], []).append(rung)
    return [_median(each) for each in alike.values()]


def _median(rungs: Sequence[Rung]) -> Rung:
    """Of measurements of the same thing."""
    told = [rung.moved_bytes for rung in rungs if rung.moved_bytes is not None]
    return Rung(
        *rungs[0][:3],
        recompute=median(rung.recompute for rung in rungs),
        pull=median(rung.pull for rung in rungs),
        local=median(rung.local for rung in rungs),
        pulled_tokens=int(median(rung.pulled_tokens for rung in rungs)),
        moved_bytes=median(told) if told else None,
    )


def result(
    costs: Costs,
    model: str,
    urls: Sequence[str],
    rungs: Sequence[Rung],
    first_pulls: Sequence[float],
    *,
    same_host: bool,
    warnings: Sequence[str] = (),
) -> Result:
    """What the costs, which have learned these rungs, and the rungs themselves say.

    `first_pulls`: seconds of each pod's first pull from the other, by consumer.
    """
    ways = []
    for source in (0, 1):
        mine = [rung for rung in rungs if rung.source == source]
        ways.append(_way(costs, urls, source, mine, first_pulls[1 - source], same_host=same_host))
    samples = max(row.samples for way in ways for row in way.rows)
    return Result(model, samples, tuple(ways), _recommended(ways), (*warnings, *_doubts(ways)))


def _way(
    costs: Costs, urls: Sequence[str], source: int, rungs: Sequence[Rung], first_pull: float, *, same_host: bool
) -> Way:
    names = urls[source], urls[1 - source]
    ranks = (names[0], 0), (names[1], 0)
    prefill, price = costs.prefill(ranks[1]), costs.pull(*ranks)
    rows = tuple(
        _row(prefill, price, [rung for rung in rungs if rung.tokens == tokens])
        for tokens in sorted({rung.tokens for rung in rungs})
    )
    speed = _gb_per_s(price, rungs)
    transport: Transport = "same-host" if same_host else _transport(speed)
    return Way(
        source=names[0],
        consumer=names[1],
        first_pull_ms=_ms(first_pull),
        rows=rows,
        prefill={"fixed_s": prefill.fixed, "token_s": prefill.token, "square_s": prefill.square},
        pull={"fixed_s": price.fixed, "token_s": price.token},
        crossover=_believed(costs.crossover(*ranks), rows[-1].tokens),
        measured_crossover=_measured(rows),
        gb_per_s=None if speed is None else round(speed, 2),
        transport=transport,
    )


def _row(prefill: Prefill, price: Pull, rungs: Sequence[Rung]) -> Row:
    usual = _median(rungs)
    tokens, held = usual.tokens, usual.pulled_tokens
    return Row(
        tokens=tokens,
        pulled_tokens=held,
        samples=len(rungs),
        recompute_ms=_ms(usual.recompute),
        pull_ms=_ms(usual.pull),
        local_ms=_ms(usual.local),
        fitted_recompute_ms=_ms(prefill.seconds(tokens, float(tokens) ** 2)),
        fitted_pull_ms=_ms(price.seconds(held, 0.0) + prefill.seconds(*_rest(tokens, held))),
        moved_bytes=usual.moved_bytes,
    )


def _rest(tokens: int, held: int) -> tuple[float, float]:
    """What is left to compute of a prompt of which so much is there: tokens, and the square."""
    return float(tokens - held), float(tokens) ** 2 - float(held) ** 2


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _believed(crossover: int | None, longest: int) -> int | None:
    """What costs say of lengths that are far beyond all that was measured says nothing."""
    return None if crossover is None or crossover > _FURTHEST * longest else crossover


def _measured(rows: Sequence[Row]) -> int | None:
    first = None
    for row in reversed(rows):
        if not row.pays:
            break
        first = row.tokens
    return first


def _recommended(ways: Sequence[Way]) -> int | None:
    """The later of the two crossovers, rounded up: the floor is one number for all pairs."""
    found = [way.crossover for way in ways if way.crossover is not None]
    if len(found) < len(ways):
        return None
    latest = max(found)
    step = next((step for below, step in _STEP if latest <= below), _COARSEST)
    return ceil(latest / step) * step


def _gb_per_s(price: Pull, rungs: Sequence[Rung]) -> float | None:
    """What the network brings, by what each further token of a pull takes; None: that cannot be told."""
    moved = [(rung.moved_bytes, rung.pulled_tokens) for rung in rungs if rung.moved_bytes]
    if not moved or max(bytes_ for bytes_, _ in moved) < _ENOUGH_BYTES or price.token <= 0:
        return None
    per_token = sum(bytes_ for bytes_, _ in moved) / sum(tokens for _, tokens in moved)
    return per_token / price.token / 1e9


def _transport(gb_per_s: float | None) -> Transport:
    if gb_per_s is None or _TCP_GB_PER_S <= gb_per_s < _RDMA_GB_PER_S:
        return "unknown"
    return "tcp" if gb_per_s < _TCP_GB_PER_S else "rdma"


def _doubts(ways: Iterable[Way]) -> list[str]:
    doubts = []
    for way in ways:
        name, longest = f"{way.source} → {way.consumer}", way.rows[-1].tokens
        worst = max(_miss(row) for row in way.rows)
        if worst > _MISFIT:
            doubts.append(f"{name}: the costs miss a measured time by {worst:.0%}; more rounds, or idle pods, may help")
        if way.crossover is not None and way.crossover > longest:
            doubts.append(f"{name}: pulls pay from {way.crossover} tokens on only if it goes on as up to {longest}")
    return doubts


def _miss(row: Row) -> float:
    return max(_off(row.fitted_recompute_ms, row.recompute_ms), _off(row.fitted_pull_ms, row.pull_ms))


def _off(fitted: float, measured: float) -> float:
    return abs(fitted - measured) / measured if measured else 0.0
