"""What being watched costs: a request's share of it, and the page that Prometheus scrapes, of a large fleet."""

import itertools
from typing import Final

from prometheus_client import generate_latest

from gateway.metrics import Metrics
from tests.bench.clock import median_us
from tests.bench.metrics_page import answered, busy
from tests.bench.rows import Row, row

_FLEETS: Final = ((8, 1), (128, 10))  # pods, models
_SCRAPES: Final = 20
_REQUESTS: Final = 2_000
_A_CALL: Final = 100


def rows(*, rounds: int, quick: bool) -> list[Row]:
    """Rows per size of fleet; the page's peer is the library's own, of the same metrics."""
    scrapes = 2 if quick else _SCRAPES
    requests = 20 if quick else _REQUESTS
    found: list[Row] = []
    for pods, models in _FLEETS:
        metrics = busy(pods=pods, models=models)
        size = float(len(_page(metrics)))
        ours, library, counted = [], [], []
        for _ in range(rounds):
            ours.append(median_us(lambda _, m=metrics: _page(m), [None], scrapes) / 1e3)
            library.append(median_us(lambda _, m=metrics: generate_latest(m.registry), [None], scrapes) / 1e3)
            counted.append(_counted(metrics, requests))
        found += [
            row(f"metrics.scrape.pods{pods}", "ms", ours, "prometheus_client", library),
            row(f"metrics.page.pods{pods}", "bytes", [size]),
            row(f"metrics.request.pods{pods}", "µs", counted),
        ]
    return found


def _page(metrics: Metrics) -> bytes:
    return "".join(metrics.registry.page(openmetrics=True)).encode()


def _counted(metrics: Metrics, requests: int) -> float:
    """What counting one request takes, the decision's stages included; many at once, for the clock's sake."""
    pods = itertools.cycle([pod.name for pod in metrics.states.pods])
    record = answered("organisation/a-model-of-0-billion", next(pods), 200)

    def count(_: None) -> None:
        for _ in range(_A_CALL):
            record.pod = next(pods)
            metrics.decided(1.0, 1.0001, 1.0002, 1.0003)
            metrics.completed(record, 2.0)

    return median_us(count, [None], max(1, requests // _A_CALL)) / _A_CALL
