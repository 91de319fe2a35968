"""What /metrics tells of states: asked for when the page is made, so it costs nothing in between."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry

from gateway.labelled import State, States
from gateway.pods import PodTable
from index import Publisher, RadixIndex, Tier
from scorers.costs import Rank

TIER_NAMES: Final[Mapping[Tier, str]] = {Tier.GPU: "gpu", Tier.CPU: "cpu"}
MOST_PAIRS: Final = 64
"""Pairs of ranks that are shown one by one, all pairs of eight pods and a few; there are as many as pods squared. Where
more have pulled, the slow ones of them are, so many at most."""
_PULLED_TOKENS: Final = 16_384  # what a pair's price is told for: a prompt for which pulling is worth it
_VERSION: Final = version("p2p-gateway")  # read from disk, so not when a page is scraped
_NS: Final = "p2p_gateway"


class OfGateway:
    """All of them. Whoever knows something that is asked for here puts a function in the attribute for it."""

    def __init__(self, pods: PodTable, index: RadixIndex, registry: CollectorRegistry) -> None:
        self.pods = pods
        self._index = index
        self.resent: Callable[[], int] = int  # who counts them; until then nobody, 0
        self.lost_lines: Callable[[], int] = int
        self.waiting: Callable[[], int] = int
        self.slow_links: Callable[[], int] = int
        self.slow_pairs: Callable[[], Iterable[tuple[Rank, Rank]]] = tuple
        self.local_models: Callable[[], Iterable[tuple[str, bool]]] = tuple
        self.asks_for_tokens: Callable[[str], bool] = lambda _: True
        self._of_the_whole(registry)
        self._of_pods(registry)
        self._of_streams(registry)
        self._of_costs(registry)

    def _of_the_whole(self, registry: CollectorRegistry) -> None:
        build = State(f"{_NS}_build_info", "Always 1", ["version", "python"])
        here = State(f"{_NS}_model_tokenized_here", "1 while a model's prompts are tokenized here", ["model"])
        nodes = State(f"{_NS}_index_nodes", "Runs of blocks in the radix tree")
        orphans = State(f"{_NS}_index_orphans", "Blocks put aside until their parent is known")
        placeholders = State(f"{_NS}_index_placeholders", "Blocks put aside until their content is known")
        table = State(f"{_NS}_index_table_bytes", "Memory of the tables from an engine's hash to its block")
        evicted = State(
            f"{_NS}_index_evicted_blocks", "Blocks forgotten to stay within index.max_blocks", kind="counter"
        )
        resent = State(
            f"{_NS}_resent_requests",
            "Requests sent again to their pod since it closed the idle connection they went out on",
            kind="counter",
        )
        waiting = State(f"{_NS}_admission_queue", "Requests held back until pods take them")
        slow = State(f"{_NS}_slow_links", "Pairs whose pulls take much longer than they did")
        barred = State(f"{_NS}_pull_breakers_open", "Pairs of ranks, and sources, whose pulls fail", ["of"])
        lost = State(f"{_NS}_log_lost_lines", "Lines of the log that could not be written", kind="counter")

        def ask() -> None:
            build.add(1, _VERSION, platform.python_version())
            for model, is_here in self.local_models():
                here.add(is_here, model)
            stats = self._index.stats()
            nodes.add(stats.nodes)
            orphans.add(stats.orphans)
            placeholders.add(stats.placeholders)
            table.add(stats.table_bytes)
            evicted.add(stats.evicted)
            resent.add(self.resent())
            waiting.add(self.waiting())
            slow.add(self.slow_links())
            for of, count in self.pods.pairs.open_counts():
                barred.add(count, of)
            lost.add(self.lost_lines())

        States(
            (build, here, nodes, orphans, placeholders, table, evicted, resent, waiting, slow, barred, lost),
            ask,
            registry,
        )

    def _of_pods(self, registry: CollectorRegistry) -> None:
        up = State(f"{_NS}_pod_ready", "1 while the pod can serve", ["pod"])
        breaker = State(
            f"{_NS}_pod_breaker_open", "1 while the pod is left out, or on trial, after failed requests", ["pod"]
        )
        stalled = State(f"{_NS}_pod_stalled", "1 while the pod computes without progress, as it says", ["pod"])
        strangers = State(
            f"{_NS}_pod_disagreements", "Peers that the pod can never pull from, nor they from it", ["pod"]
        )
        deaf = State(
            f"{_NS}_pod_p2p_port_closed", "1 while nobody listens where the rank serves pulls", ["pod", "rank"]
        )
        silent = State(f"{_NS}_pod_tokenizer_breaker_open", "1 while the pod is not asked for token ids", ["pod"])
        takes = State(f"{_NS}_pod_takes_token_ids", "1 while the pod takes a chat's token ids", ["pod"])
        requests = State(f"{_NS}_in_flight_requests", "Requests under way", ["pod", "rank"])
        tokens = State(f"{_NS}_in_flight_tokens", "Uncached prompt tokens that have not answered yet", ["pod", "rank"])
        pulls = State(
            f"{_NS}_in_flight_pulls",
            "Requests that have not answered yet and pull: to the pod (in), from it (out)",
            ["pod", "rank", "direction"],
        )

        def ask() -> None:
            now = self.pods.clock()
            for pod in self.pods:
                name = pod.name
                up.add(pod.state == "ready", name)
                breaker.add(not pod.breaker.admits(now), name)
                stalled.add(pod.stalled, name)
                strangers.add(len(self.pods.agreement.of(name)), name)
                silent.add(not self.asks_for_tokens(name), name)
                takes.add(pod.takes_token_ids, name)
                for rank, counts in pod.in_flight.items():
                    deaf.add(self.pods.pairs.is_deaf((pod.url, rank)), name, str(rank))
                    requests.add(counts.requests, name, str(rank))
                    tokens.add(counts.tokens, name, str(rank))
                    pulls.add(counts.pulls, name, str(rank), "in")
                    pulls.add(counts.serving, name, str(rank), "out")

        States((up, breaker, stalled, strangers, deaf, silent, takes, requests, tokens, pulls), ask, registry)

    def _of_streams(self, registry: CollectorRegistry) -> None:
        of_rank = ["pod", "rank"]
        blocks = State(f"{_NS}_index_blocks", "Blocks held, by tier", ["pod", "rank", "tier"])
        age = State(f"{_NS}_kv_event_age_seconds", "Since the last event", of_rank)
        certain = State(f"{_NS}_kv_stream_certain", "1 while no event is known to be missing", of_rank)
        credit = State(f"{_NS}_pod_credit", "Factor at which what the pod is said to hold counts", of_rank)
        gaps = State(f"{_NS}_kv_gaps", "Gaps in the sequence of events", of_rank, kind="counter")
        restarts = State(f"{_NS}_kv_restarts", "Engine restarts seen in the sequence", of_rank, kind="counter")

        def ask() -> None:
            now = time.monotonic()
            for pod in self.pods:
                name = pod.name
                for rank in pod.ranks:
                    for tier, count in self._index.blocks(Publisher(name, rank)).items():
                        blocks.add(count, name, str(rank), TIER_NAMES[tier])
                for rank, stream in pod.streams.items():
                    if stream.last_event_at is not None:
                        age.add(now - stream.last_event_at, name, str(rank))
                    certain.add(stream.certain, name, str(rank))
                    credit.add(stream.trust.credit(now), name, str(rank))
                    gaps.add(stream.gaps, name, str(rank))
                    restarts.add(stream.restarts, name, str(rank))

        States((blocks, age, certain, credit, gaps, restarts), ask, registry)

    def _of_costs(self, registry: CollectorRegistry) -> None:
        prefill = State(
            f"{_NS}_prefill_seconds_per_token",
            "What a token of a prompt is believed to take, by what prompts there took",
            ["pod", "rank"],
        )
        usual = State(
            f"{_NS}_usual_pull_seconds", f"What a pull of {_PULLED_TOKENS} tokens is believed to take in the fleet"
        )
        pair = State(
            f"{_NS}_pair_pull_seconds",
            f"What a pull of {_PULLED_TOKENS} tokens is believed to take over a link, of {MOST_PAIRS} links at most",
            ["source", "source_rank", "consumer", "consumer_rank"],
        )

        def ask() -> None:
            costs, names = self.pods.costs, {pod.url: pod.name for pod in self.pods}
            for pod in self.pods:
                for rank in pod.ranks:
                    prefill.add(costs.prefill((pod.url, rank)).token, pod.name, str(rank))
            usual.add(costs.usual_pull().seconds(_PULLED_TOKENS, 0.0))
            for source, consumer in self._told_pairs():
                if source[0] in names and consumer[0] in names:
                    ends = names[source[0]], str(source[1]), names[consumer[0]], str(consumer[1])
                    pair.add(costs.pull(source, consumer).seconds(_PULLED_TOKENS, 0.0), *ends)

        States((prefill, usual, pair), ask, registry)

    def _told_pairs(self) -> list[tuple[Rank, Rank]]:
        """All that have pulled, as long as they are few; else those that are slow. O(MOST_PAIRS)."""
        found = self.pods.costs.pairs(self.pods.clock())
        pairs = [(price.source, price.consumer) for price in islice(found, MOST_PAIRS + 1)]
        return pairs if len(pairs) <= MOST_PAIRS else list(islice(self.slow_pairs(), MOST_PAIRS))
