"""Candidates, requests and costs whose forecasts can be worked out by hand."""

from typing import Any

from scorers import Answer, Candidate, Costs, Forecast, PlacementRequest, Prefill, Priors, Pull
from scorers.ttft import Expected

BLOCK = 16
PREFILL = Prefill(fixed=0.1, token=1e-3, square=1e-6, decode=0.01)
PULL = Pull(fixed=0.2, token=1e-4, step=2.0, setup=1.0)
ANSWER = Answer(fixed=2.0, request=0.1, context=1e-5)
PRIORS = Priors(prefill=PREFILL, pull=PULL, answer=ANSWER)


def pod(name: str, held: int = 0, **columns: Any) -> Candidate:
    """One that holds so many tokens, in both tiers."""
    defaults: dict[str, Any] = {"p2p_host": name, "p2p_port": 7777, "cpu_tokens": held, "any_tokens": held}
    return Candidate(pod=f"http://{name}:8000", **(defaults | columns))


def asked(tokens: int | None = 1_000, *, costs: Costs | None = None, **fields: Any) -> PlacementRequest:
    """May pull, and costs what `PRIORS` say unless told otherwise."""
    defaults: dict[str, Any] = {"request_id": "r", "block_size": BLOCK, "model": "m", "pulls": True}
    return PlacementRequest(prompt_tokens=tokens, costs=costs or Costs(PRIORS), **(defaults | fields))


def forecast(
    candidate: Candidate,
    *others: Candidate,
    request: PlacementRequest | None = None,
    foresight: float = 0.0,
    patience: float = 0.0,
) -> Expected:
    return Forecast(request or asked(), [candidate, *others], foresight, patience).of(candidate)


def met(*pairs: tuple[Candidate, Candidate], priors: Priors = PRIORS) -> Costs:
    """Costs of a fleet in which these have pulled from each other, and it cost what it was believed to."""
    costs = Costs(priors)
    for source, consumer in pairs:
        seconds = priors.pull.seconds(1_000, 0.0, met=False)
        costs.pulled((source.pod, source.rank), (consumer.pod, consumer.rank), Pull(1.0, 1_000.0, 0.0, 1.0), seconds, 0)
    return costs
