import random
from collections.abc import Sequence
from itertools import product

import msgspec
import pytest

from gateway.calibrate.result import Result, Rung, learn, result
from gateway.calibrate.table import report
from scorers import Costs

URLS = ("http://a:8000", "http://b:8000")
LENGTHS = (512, 2048, 8192, 32_768)
BYTES_PER_TOKEN = 41_500.0

# Published pods: seconds of computing and of pulling n tokens.
FIXED, TOKEN, SQUARE = 0.0267, 2.457e-5, 3.13e-10
PULL_FIXED, PULL_TOKEN = 0.025, 4.08e-6


def rungs(
    *,
    pull_fixed: float = PULL_FIXED,
    pull_token: float = PULL_TOKEN,
    back: float | None = None,
    bytes_per_token: float | None = BYTES_PER_TOKEN,
    lengths: Sequence[int] = LENGTHS,
    noise: float = 0.0,
) -> list[Rung]:
    """Both ways; `back`: what a token costs the other way round."""
    draw = random.Random(7)
    made = []
    for _, tokens, source in product(range(5), lengths, (0, 1)):
        held = tokens // 16 * 16 - 16
        computed = FIXED + TOKEN * tokens + SQUARE * tokens**2
        rest = FIXED + TOKEN * (tokens - held) + SQUARE * (tokens**2 - held**2)
        per_token = back if back is not None and source == 1 else pull_token
        pull = pull_fixed + per_token * held + rest
        made.append(
            Rung(
                source,
                1 - source,
                tokens,
                recompute=computed * draw.uniform(1 - noise, 1 + noise),
                pull=pull * draw.uniform(1 - noise, 1 + noise),
                local=0.01,
                pulled_tokens=held,
                moved_bytes=None if bytes_per_token is None else bytes_per_token * held,
            )
        )
    return made


def found(made: Sequence[Rung], *, same_host: bool = False, warnings: Sequence[str] = ()) -> Result:
    costs = Costs()
    learn(costs, URLS, made)
    return result(costs, "m", URLS, made, (0.5, 6.0), same_host=same_host, warnings=warnings)


def true_crossover() -> float:
    return next(n for n in range(64, 10_000) if TOKEN * n + SQUARE * n**2 > PULL_FIXED + PULL_TOKEN * n)


@pytest.mark.parametrize(("noise", "share"), [(0.0, 0.01), (0.1, 0.2)])
def test_the_costs_of_published_pods_are_found_again(noise: float, share: float) -> None:
    one, other = found(rungs(noise=noise)).ways
    assert (one.source, one.consumer, one.first_pull_ms) == (*URLS, 6000.0)
    assert (other.source, other.consumer, other.first_pull_ms) == (*reversed(URLS), 500.0)
    for way in (one, other):
        assert way.prefill["token_s"] == pytest.approx(TOKEN, rel=share)
        assert way.pull["token_s"] == pytest.approx(PULL_TOKEN, rel=share)
        assert way.crossover == pytest.approx(true_crossover(), rel=share)
        for row in way.rows:
            assert row.samples == 5
            assert row.fitted_recompute_ms == pytest.approx(row.recompute_ms, rel=share)
            assert row.fitted_pull_ms == pytest.approx(row.pull_ms, rel=share)


def test_the_recommended_floor_is_the_later_crossover_rounded_up() -> None:
    told = found(rungs(back=1.2e-5))
    crossovers = [way.crossover or 0 for way in told.ways]
    assert crossovers[1] > crossovers[0]
    assert told.recommended == -(-crossovers[1] // 256) * 256


@pytest.mark.parametrize(("fixed", "step"), [(0.01, 64), (0.06, 256), (0.3, 1024)], ids=["small", "middling", "large"])
def test_a_floor_is_as_coarse_as_it_is_large(fixed: float, step: int) -> None:
    told = found(rungs(pull_fixed=fixed))
    latest = max(way.crossover or 0 for way in told.ways)
    assert told.recommended is not None
    assert 0 <= told.recommended - latest < step
    assert told.recommended % step == 0


def test_where_pulls_never_pay_one_way_no_floor_is_right() -> None:
    told = found(rungs(back=9e-5, lengths=(512, 1024, 2048, 4096)))
    assert told.ways[0].crossover is not None
    assert (told.ways[1].crossover, told.ways[1].measured_crossover) == (None, None)
    assert told.recommended is None


def test_the_measured_crossover_is_where_pulls_have_won_for_good() -> None:
    made = [
        rung._replace(pull=rung.recompute * (0.5 if rung.tokens in (512, 8192, 32_768) else 2.0)) for rung in rungs()
    ]
    assert found(made).ways[0].measured_crossover == 8192
    assert found([rung._replace(pull=rung.recompute / 2) for rung in rungs()]).ways[0].measured_crossover == 512


@pytest.mark.parametrize(
    ("token_s", "transport"),
    [(1.57e-5, "tcp"), (4.08e-6, "rdma"), (1.05e-5, "unknown")],
    ids=["tcp", "rdma", "between"],
)
def test_what_a_network_brings_tells_tcp_from_rdma(token_s: float, transport: str) -> None:
    told = found(rungs(pull_token=token_s))
    assert {way.transport for way in told.ways} == {transport}
    assert told.ways[0].gb_per_s == pytest.approx(BYTES_PER_TOKEN / token_s / 1e9, rel=0.2)


def test_on_one_host_without_bytes_or_with_few_of_them_nothing_is_said_of_the_network() -> None:
    assert {way.transport for way in found(rungs(), same_host=True).ways} == {"same-host"}
    for bytes_per_token in (None, 100.0):
        ways = found(rungs(bytes_per_token=bytes_per_token)).ways
        assert {(way.transport, way.gb_per_s) for way in ways} == {("unknown", None)}


def test_doubts_are_told_beside_what_was_warned_of_before() -> None:
    odd = [rung._replace(recompute=0.5 if rung.tokens == 2048 else rung.recompute) for rung in rungs()]
    told = found(odd, warnings=["not idle"])
    assert told.warnings[0] == "not idle"
    assert any("the costs miss a measured time" in warning for warning in told.warnings)
    late = found(rungs(pull_fixed=0.12, lengths=(512, 1024, 2048)))
    assert any("only if it goes on" in warning for warning in late.warnings)
    assert found(rungs()).warnings == ()


def test_a_time_of_nothing_is_no_miss() -> None:
    assert found([rung._replace(recompute=0.0, pull=0.0) for rung in rungs()]).ways[0].rows[0].recompute_ms == 0.0


def test_the_document_has_everything_under_its_names() -> None:
    document = msgspec.json.decode(msgspec.json.encode(found(rungs()).document()))
    assert set(document) == {"model", "rounds", "pairs", "recommended_min_cached_token_delta", "warnings"}
    pair = document["pairs"][0]
    assert (pair["source"], pair["consumer"]) == URLS
    assert [row["tokens"] for row in pair["rows"]] == list(LENGTHS)


def test_a_person_reads_a_table_costs_and_advice() -> None:
    text = report(found(rungs(), warnings=["not idle"]))
    assert "http://b:8000 pulls from http://a:8000" in text
    assert "32,768" in text
    assert "recommended: p2p.min_cached_token_delta: " in text
    assert "faster than TCP: RDMA" in text
    assert text.endswith("warning: not idle\n")
    widths = {len(line) for line in text.splitlines()[3:8]}
    assert len(widths) == 1


def test_a_person_is_told_that_no_floor_is_right() -> None:
    told = msgspec.structs.replace(found(rungs(bytes_per_token=None)), recommended=None)
    never = msgspec.structs.replace(told.ways[0], crossover=None, measured_crossover=None)
    zero = msgspec.structs.replace(never, rows=(msgspec.structs.replace(never.rows[0], recompute_ms=0.0),))
    text = report(msgspec.structs.replace(told, ways=(zero, told.ways[1])))
    assert "a pull pays never by these costs, never of the lengths measured" in text
    assert "leave p2p.min_cached_token_delta at auto" in text
    assert "GB/s" not in text
