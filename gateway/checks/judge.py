"""What the facts of one pod mean for pulls: pure.

FAIL is for what keeps the pod from pulling or from being pulled from at all, or the gateway from ever naming it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config.addresses import join_address
from gateway.checks.facts import PodFacts, RankFacts
from gateway.checks.finding import Finding

_ARGS = "`p2p-gateway pod-args` prints a pod's whole command"
_EVENTS = f"start the pod with --kv-events-config and enable_kv_cache_events; {_ARGS}"
_TIER = f"start the pod with --kv-transfer-config, OffloadingConnector and cpu_bytes_to_use; {_ARGS}"


def judge(pod: PodFacts) -> Iterator[Finding]:
    """All about one pod, what the rest rests on first."""
    if pod.unreachable:
        fix = "start the pod, or correct its url"
        if "answered 401" in pod.unreachable or "answered 403" in pod.unreachable:
            fix = "name the pod's key with api_key_file or api_key_env"
        elif "certificate" in pod.unreachable.lower():
            fix = "name who signed the pods' certificates in upstream_tls.ca"
        yield Finding("FAIL", "reachable", pod.url, f"not reachable: {pod.unreachable}", fix)
        return
    if pod.model is None:
        yield Finding("FAIL", "model", pod.url, "serves no model", "look at the pod's log")
        return
    length = f", up to {limit:,} tokens" if (limit := pod.models[0].max_model_len) else ""
    version = f"vLLM {pod.version}" if pod.version else "an engine that does not tell its version"
    yield Finding("ok", "model", pod.url, f"serves {pod.model}{length}; {version}")
    if pod.identity_problem:
        message = f"what it has to share with its peers cannot be read: {pod.identity_problem}"
        yield Finding("warn", "identity", pod.url, message, "look at the pod's log")
    for rank in pod.ranks:
        yield from _rank(rank)


def settled(findings: Sequence[Finding]) -> list[Finding]:
    """With what test pulls have shown: a pod from which one came has a CPU tier, whatever its events told."""
    gave = {finding.peer for finding in findings if (finding.level, finding.check) == ("ok", "pull")}
    return [
        Finding("note", finding.check, finding.pod, f"{finding.message}; but one came from it")
        if (finding.level, finding.check) == ("FAIL", "cpu-tier") and finding.pod in gave
        else finding
        for finding in findings
    ]


def _rank(rank: RankFacts) -> Iterator[Finding]:
    if rank.failed:
        yield Finding("FAIL", "answers", rank.label, f"a small prompt failed: {rank.failed}", "look at the pod's log")
    yield from _events(rank)
    if rank.stream == "arriving":
        yield from _cpu_tier(rank)
    yield _p2p(rank)
    if rank.tells_cached is not None:
        yield _details(rank)


def _events(rank: RankFacts) -> Iterator[Finding]:
    where = rank.endpoint or ""
    if rank.stream == "none":
        message = "publishes no KV events, or does not tell where: it is never named as a source"
        fix = f"{_EVENTS}; before vLLM 0.32, or with ipc://, name the endpoint as kv_events"
        yield Finding("FAIL", "events", rank.label, message, fix)
        return
    if rank.stream == "unreachable":
        fix = "open the port to this host, or correct kv_events"
        yield Finding("FAIL", "events", rank.label, f"no event stream at {where}: {rank.problem}", fix)
        return
    if rank.stream == "silent":
        if not rank.failed:
            message = f"connected to {where}, but the blocks of a fresh prompt were not announced"
            fix = f"{_EVENTS}; prefix caching has to be on, and kv_events to be this pod's"
            yield Finding("FAIL", "events", rank.label, message, fix)
    else:
        size = rank.trail.block_size if rank.trail is not None else None
        yield Finding("ok", "events", rank.label, f"events arrive from {where}, blocks of {size} tokens")
    if rank.unusable:
        message = f"{rank.unusable} events could not be used"
        yield Finding("warn", "events", rank.label, message, "is the pod's engine one that this gateway knows?")
    yield from _replay(rank)


def _replay(rank: RankFacts) -> Iterator[Finding]:
    fix = f"give the pod a replay_endpoint in --kv-events-config; {_ARGS}"
    if rank.replay == "none":
        message = "no replay endpoint: missed events stay missing, and a gateway that starts later knows nothing"
        yield Finding("warn", "replay", rank.label, message, fix)
    elif rank.replay == "silent":
        yield Finding("warn", "replay", rank.label, "the replay endpoint does not answer", f"open its port, or {fix}")
    else:
        yield Finding("ok", "replay", rank.label, "missed events can be asked for again")


def _cpu_tier(rank: RankFacts) -> Iterator[Finding]:
    if not rank.offloaded:
        message = "the prompt did not reach a CPU tier: nothing can be pulled from it"
        fix = f"{_TIER}; a tier whose chunks are longer than {rank.prompt_blocks} blocks would show only longer prompts"
        yield Finding("FAIL", "cpu-tier", rank.label, message, fix)
        return
    yield Finding("ok", "cpu-tier", rank.label, "prompts reach its CPU tier")
    if rank.offloaded > rank.prompt_blocks:
        yield Finding("ok", "generated", rank.label, "generated tokens reach its CPU tier")
    elif rank.coarse:
        message = "whether generated tokens reach its CPU tier cannot be told: it takes many blocks as one"
        yield Finding("note", "generated", rank.label, message)
    else:
        message = "generated tokens do not reach its CPU tier: the next turn's pull ends at the last prompt"
        yield Finding("warn", "generated", rank.label, message, "set offload_prompt_only to false in its extra config")
    if not rank.described:
        message = "events of its CPU tier name blocks by hash only: a gateway that starts later cannot place them"
        fix = "set self_describing_kv_events to true in its extra config"
        yield Finding("warn", "self-describing", rank.label, message, fix)
    else:
        yield Finding("ok", "self-describing", rank.label, "events of its CPU tier say what blocks hold")
    yield from _size(rank)


def _size(rank: RankFacts) -> Iterator[Finding]:
    gpu, seen = rank.gpu_blocks, rank.occupancy
    if gpu is None or seen is None:
        yield Finding("note", "cpu-size", rank.label, "whether its CPU tier is larger than its GPU's cannot be told")
    elif seen.most > gpu:
        message = f"its CPU tier is larger than its GPU's: {seen.most:,} blocks were in it, {gpu:,} fit on the GPU"
        yield Finding("ok", "cpu-size", rank.label, message)
    elif seen.blocks is not None:
        message = f"its CPU tier was full with {seen.blocks:,} blocks, and {gpu:,} fit on the GPU: it forgets first"
        yield Finding("warn", "cpu-size", rank.label, message, "raise cpu_bytes_to_use over the size of the GPU's KV")
    else:
        message = f"its CPU tier was not seen full: {seen.most:,} blocks at most, {gpu:,} fit on the GPU"
        yield Finding("note", "cpu-size", rank.label, message)


def _p2p(rank: RankFacts) -> Finding:
    if rank.p2p is None:
        message = "where it serves pulls is not known: several pods of one host have the same default"
        return Finding("FAIL", "p2p-port", rank.label, message, "name it as p2p: HOST:PORT, as the pod was told to")
    where = join_address(*rank.p2p)
    if rank.unreached is not None:
        message = f"whether somebody listens for pulls at {where} cannot be told from this host: {rank.unreached}"
        return Finding("note", "p2p-port", rank.label, message)
    if rank.refused is not None:
        fix = f"give its secondary_tiers a p2p tier with that very host and port, or correct p2p; {_ARGS}"
        return Finding("FAIL", "p2p-port", rank.label, f"nothing serves pulls at {where}: {rank.refused}", fix)
    return Finding("ok", "p2p-port", rank.label, f"somebody listens for pulls at {where}")


def _details(rank: RankFacts) -> Finding:
    if rank.tells_cached:
        return Finding("ok", "details", rank.label, "answers tell how much of a prompt was reused")
    message = "answers do not tell how much of a prompt was reused: the gateway has only its counters to learn from"
    return Finding("warn", "details", rank.label, message, "start it with --enable-prompt-tokens-details")
