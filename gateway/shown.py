"""What is shown of pods: to clients the models, to operators each pod and rank."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from config.addresses import join_address
from gateway.in_flight import InFlight
from gateway.metrics import TIER_NAMES
from gateway.pod import Model, Pod
from gateway.pods import PodTable
from index import Publisher, RadixIndex
from scorers import Costs


def model_card(models: Iterable[Model]) -> msgspec.Raw:
    """One pod's own entry for a model: where they differ, the one that promises the least."""
    return msgspec.Raw(min(models, key=_promised).card)


def _promised(model: Model) -> float:
    try:
        longest = msgspec.json.decode(model.card, type=_Card).max_model_len
    except msgspec.DecodeError:
        longest = None
    return math.inf if longest is None else longest


class _Card(msgspec.Struct):
    max_model_len: int | None = None


def pod_row(pod: Pod, pods: PodTable, index: RadixIndex) -> dict[str, Any]:
    """What is known of a pod and of each of its ranks."""
    now = time.monotonic()
    held = [index.blocks(Publisher(pod.name, rank)) for rank in pod.ranks]
    blocks = {name: sum(tiers[tier] for tiers in held) for tier, name in TIER_NAMES.items()}
    ranks = []
    for rank in pod.ranks:
        load, counts, stream = pod.load.get(rank), pod.in_flight.get(rank, _NOTHING), pod.streams.get(rank)
        ranks.append(
            {
                "rank": rank,
                "waiting": load and load.waiting,
                "running": load and load.running,
                "kv_usage": load and load.kv_usage,
                "in_flight_requests": counts.requests,
                "in_flight_unanswered": counts.unanswered,
                "in_flight_tokens": counts.tokens,
                "pulls": counts.pulls,
                "pulled_tokens": counts.pulled_tokens,
                "joined": counts.joined,
                "serving": counts.serving,
                "serving_tokens": counts.serving_tokens,
                "last_event_age": None
                if not stream or stream.last_event_at is None
                else round(now - stream.last_event_at, 3),
                "last_seq": stream and stream.last_seq,
                "gaps": stream.gaps if stream else 0,
                "restarts": stream.restarts if stream else 0,
                "certain": bool(stream and stream.certain),
                "accuracy": stream and stream.trust.accuracy,
                "credit": round(stream.trust.credit(now), 4) if stream else 1.0,
                "p2p_port_closed": pods.pairs.is_deaf((pod.url, rank)),
                "costs": _costs(pods.costs, (pod.url, rank), pods.clock()),
            }
        )
    return {
        "url": pod.url,
        "role": pod.spec.role,
        "state": pod.state,
        "reason": pod.reason or None,
        "suspect": pod.suspect,
        "stalled": pod.stalled,
        "models": list(pod.models),
        "labels": pod.spec.labels,
        "p2p": pod.p2p and join_address(*pod.p2p),
        "breaker": pod.breaker.state(pods.clock()),
        "takes_token_ids": pod.takes_token_ids,
        "renders": pod.renders,
        "cannot_pull_from": pods.agreement.of(pod.name),
        "cached_blocks": blocks,
        **_over_ranks(ranks),
        "ranks": ranks,
    }


def link_rows(pods: PodTable) -> list[dict[str, Any]]:
    """What pulls cost, for each pair of ranks that has pulled. O(pairs)."""
    return [
        {
            "source": source,
            "source_rank": source_rank,
            "consumer": consumer,
            "consumer_rank": consumer_rank,
            "fixed_ms": round(price.pull.fixed * 1e3, 3),
            "us_per_token": round(price.pull.token * 1e6, 3),
            "crossover_tokens": price.crossover,
            "samples": round(price.evidence, 1),
            "slowed": price.slowed,
        }
        for price in pods.costs.pairs(pods.clock())
        for (source, source_rank), (consumer, consumer_rank) in [(price.source, price.consumer)]
    ]


def breaker_rows(pods: PodTable) -> list[dict[str, Any]]:
    """Who is not named as a source at present, and why; a consumer of null: to nobody. O(open breakers)."""
    return [
        {
            "source": each.source[0],
            "source_rank": each.source[1],
            "consumer": each.consumer and each.consumer[0],
            "consumer_rank": each.consumer and each.consumer[1],
            "reason": each.why,
            "failures": each.failures,
            "trial_in_s": each.due_s if each.due_s is None else round(each.due_s, 3),
        }
        for each in pods.pairs.broken(pods.clock())
    ]


def _costs(costs: Costs, rank: tuple[str, int], now: float) -> dict[str, float]:
    prefill = costs.prefill(rank)
    return {
        "prefill_fixed_ms": round(prefill.fixed * 1e3, 3),
        "prefill_us_per_token": round(prefill.token * 1e6, 3),
        "prefill_ns_per_token_squared": round(prefill.square * 1e9, 4),
        "samples": round(costs.evidence(rank, now), 1),
    }


_NOTHING = InFlight()
_COUNTED = (
    "in_flight_requests",
    "in_flight_unanswered",
    "in_flight_tokens",
    "pulls",
    "pulled_tokens",
    "joined",
    "serving",
    "serving_tokens",
)


def _over_ranks(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The pod's own line: sums of loads, the worst of streams; null where no rank said anything."""

    def known(field: str) -> list[Any]:
        return [rank[field] for rank in ranks if rank[field] is not None]

    line: dict[str, Any] = {f: sum(known(f)) if known(f) else None for f in ("waiting", "running")}
    line |= {f: sum(known(f)) for f in (*_COUNTED, "gaps", "restarts")}
    line |= {f: max(known(f), default=None) for f in ("kv_usage", "last_seq")}
    line["last_event_age"] = min(known("last_event_age"), default=None)
    line |= {f: min(known(f), default=None) for f in ("accuracy", "credit")}
    line["certain"] = bool(ranks) and all(rank["certain"] for rank in ranks)
    return line
