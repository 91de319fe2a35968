"""One whole decision by the default policy: block keys of a 32K-token prompt, match, candidates, scores, pick, source.

And of it the choice alone: scores, pick and source. Costs are learned, and each pod has another share of the prompt, on
the GPU and for peers to pull, so that every pod but the last one might.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from config.schema import Breaker, Config, PodConfig
from gateway.decision import Ask, Decider
from gateway.openai import Peek
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import BlockStored, Publisher, RadixIndex, Tier
from scorers import Costs, PlacementRequest, Prefill, Pull, place
from tests.bench.clock import median_us
from tests.bench.rows import Row, row
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, STORE_BLOCKS

_MODEL: Final = "bench-model"
_FLEETS: Final = (2, 16, 64)
_DECISIONS: Final = 40
_QUICK_DECISIONS: Final = 5
_NOW: Final = 100.0


def rows(*, rounds: int, quick: bool) -> list[Row]:
    """Rows per size of fleet; rounds in turn over the fleets, the value of a round is the median decision's."""
    fleets = {pods: _fleet(pods) for pods in _FLEETS}
    whole: dict[int, list[float]] = {pods: [] for pods in _FLEETS}
    choices: dict[int, list[float]] = {pods: [] for pods in _FLEETS}
    decisions = _QUICK_DECISIONS if quick else _DECISIONS
    for _ in range(rounds):
        for pods, (decider, choose) in fleets.items():
            asks = [_ask() for _ in range(decisions)]  # of prompts that come for the first time: their keys are made
            whole[pods].append(median_us(decider.decide, asks, decisions))
            choices[pods].append(median_us(choose, asks, decisions))
    return [
        row(f"decision.{what}{pods}", "µs", times)
        for what, values in (("pods", whole), ("choice", choices))
        for pods, times in values.items()
    ]


def _fleet(count: int) -> tuple[Decider, Callable[[Ask], object]]:
    """A loaded fleet that holds the prompt, each pod a little more of it than the pod before; and its choice alone."""
    specs = tuple(PodConfig(url=f"http://10.0.0.{number}:8000") for number in range(count))
    config = Config(pods=specs)
    pods = PodTable(
        (Pod(spec, p2p=(spec.name.partition(":")[0], config.p2p.port), breaker=Breaker()) for spec in specs),
        max_load_age=config.poll.max_age,
        clock=lambda: _NOW,
    )
    index = RadixIndex()
    for number, pod in enumerate(pods):
        pod.joined({_MODEL: Model(_MODEL, _MODEL)}, (0,))
        pod.load, pod.load_at = {0: Load(number % 3, number % 7, number / count)}, _NOW
        publisher = Publisher(pod.name, 0)
        index.add_publisher(publisher, _MODEL)
        for tier in Tier:
            index.apply(publisher, _stores(PROMPT_BLOCKS * (number + 1) // count, tier))
    _teach(pods.costs, [pod.url for pod in pods])
    decider = Decider(index, pods, config.placement, config.p2p, coordinate=lambda: 0.5)
    return decider, _choice(decider, config, pods.costs)


def _choice(decider: Decider, config: Config, costs: Costs) -> Callable[[Ask], object]:
    """What is left of a decision where the candidates are made: placement and choice of a source."""
    decided = decider.decide(_ask())
    candidates, placement, source = decided.candidates, config.placement, config.p2p.source
    assert max(each.any_tokens for each in candidates) == PROMPT_BLOCKS * BLOCK_TOKENS
    request = PlacementRequest(
        request_id="bench",
        prompt_tokens=decided.prompt.tokens,
        block_size=decided.block_size,
        model=_MODEL,
        pulls=True,
        costs=costs,
        now=_NOW,
    )

    def choose(_: Ask) -> object:
        placed = place(request, candidates, placement.scorers, placement.picker, coordinate=0.5)
        return source.choose(request, candidates, candidates[placed.chosen])

    return choose


def _teach(costs: Costs, urls: list[str]) -> None:
    """Every pod has computed and pulled from the one before it."""
    for number, (source, consumer) in enumerate(pairwise([urls[-1], *urls])):
        costs.computed((consumer, 0), Prefill(1.0, 8192.0, 8192.0**2, 2.0), 0.25, _NOW - 1)
        costs.pulled((source, 0), (consumer, 0), Pull(1.0, 8192.0, 0.01 * number, 0.0), 0.1, _NOW - 1)


def _stores(blocks: int, tier: Tier) -> list[BlockStored]:
    """The prompt's first blocks; a block's number serves as its engine hash."""
    tokens = _prompt()
    return [
        BlockStored(
            list(range(at, end)),
            at - 1 if at else None,
            tokens[at * BLOCK_TOKENS : end * BLOCK_TOKENS].tolist(),
            BLOCK_TOKENS,
            tier,
        )
        for at in range(0, blocks, STORE_BLOCKS)
        if (end := min(at + STORE_BLOCKS, blocks))
    ]


def _prompt() -> TokenIds:
    return TokenIds("I", range(PROMPT_BLOCKS * BLOCK_TOKENS))


def _ask() -> Ask:
    return Ask("bench", Peek(model=_MODEL), _MODEL, Prompt((_prompt(),), "given"))
