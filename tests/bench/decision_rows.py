"""One whole decision: block keys of a 32K-token prompt, match, candidates, scores, pick, source."""

from typing import Final

from config.schema import Breaker, Config, PodConfig
from gateway.decision import Ask, Decider
from gateway.openai import Peek
from gateway.pods import Load, Model, Pod, PodTable
from gateway.tokens import Prompt, TokenIds
from index import BlockStored, Publisher, RadixIndex
from tests.bench.clock import median_us
from tests.bench.rows import Row, row
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, STORE_BLOCKS

_MODEL: Final = "bench-model"
_FLEETS: Final = (2, 16, 64)
_DECISIONS: Final = 40
_QUICK_DECISIONS: Final = 5
_NOW: Final = 100.0


def rows(*, rounds: int, quick: bool) -> list[Row]:
    """A row per size of fleet; rounds in turn over the fleets, the value of a round is the median decision's."""
    deciders = {pods: _decider(pods) for pods in _FLEETS}
    for decider in deciders.values():
        assert max(each.any_tokens for each in decider.decide(_ask()).candidates) == PROMPT_BLOCKS * BLOCK_TOKENS
    values: dict[int, list[float]] = {pods: [] for pods in _FLEETS}
    decisions = _QUICK_DECISIONS if quick else _DECISIONS
    for _ in range(rounds):
        for pods, decider in deciders.items():
            asks = [_ask() for _ in range(decisions)]  # of prompts that come for the first time: their keys are made
            values[pods].append(median_us(decider.decide, asks, decisions))
    return [row(f"decision.pods{pods}", "µs", times) for pods, times in values.items()]


def _decider(count: int) -> Decider:
    """A loaded fleet that holds the prompt, each pod a little more of it than the pod before."""
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
        index.apply(publisher, _stores(PROMPT_BLOCKS * (number + 1) // count))
    return Decider(index, pods, config.placement, config.p2p, coordinate=lambda: 0.5)


def _stores(blocks: int) -> list[BlockStored]:
    """The prompt's first blocks; a block's number serves as its engine hash."""
    tokens = _prompt()
    return [
        BlockStored(
            list(range(at, end)),
            at - 1 if at else None,
            tokens[at * BLOCK_TOKENS : end * BLOCK_TOKENS].tolist(),
            BLOCK_TOKENS,
        )
        for at in range(0, blocks, STORE_BLOCKS)
        if (end := min(at + STORE_BLOCKS, blocks))
    ]


def _prompt() -> TokenIds:
    return TokenIds("I", range(PROMPT_BLOCKS * BLOCK_TOKENS))


def _ask() -> Ask:
    return Ask("bench", Peek(model=_MODEL), _MODEL, Prompt((_prompt(),), "given"))
