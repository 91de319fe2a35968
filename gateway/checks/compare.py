"""What pods that are to pull from each other have to have in common: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.agreement import Agreement
from gateway.checks.facts import PodFacts
from gateway.checks.finding import Finding
from index import Publisher

_FIXES: Mapping[str, tuple[str, str]] = {
    "block-size": ("they cut prompts into blocks of different sizes", "give both the same --block-size"),
    "hash": (
        "they hash the same prompt differently",
        "give both the same PYTHONHASHSEED, --prefix-caching-hash-algo and adapter paths",
    ),
}


def fleets(pods: Sequence[PodFacts]) -> list[list[PodFacts]]:
    """The pods that answer, by what they serve, in the order of the configuration."""
    found: dict[str, list[PodFacts]] = {}
    for pod in pods:
        if pod.model is not None:
            found.setdefault(pod.model, []).append(pod)
    return list(found.values())


def compare(fleet: Sequence[PodFacts]) -> Iterator[Finding]:
    """All about the pods of one model. The first one is what the others are held against."""
    first, *others = fleet
    if not others:
        message = f"no other pod serves {first.model}: there is nobody to pull from"
        yield Finding("warn", "peers", first.url, message, "add a pod, or switch p2p off")
        return
    compared = [*_roots(fleet), *_hashes(fleet), *_versions(fleet), *_identities(fleet)]
    yield from compared
    if all(finding.level == "note" for finding in compared):
        what = ["model", *(["block size", "hashes"] if _announced(fleet) > 1 else [])]
        told = [pod for pod in fleet if pod.identity]
        if len(told) == len(fleet):
            what.append(f"{len(told[0].identity or {})} more of /kv/identity")
        yield Finding("ok", "alike", first.url, f"it and {len(others)} more agree in {', '.join(what)}")


def _roots(fleet: Sequence[PodFacts]) -> Iterator[Finding]:
    first, *others = fleet
    for pod in others:
        one, other = first.models[0].root, pod.models[0].root
        if one != other and one is not None and other is not None:
            message = (
                f"started with different strings for the model, {other} here and {one} there: they refuse each other"
            )
            yield Finding("FAIL", "model", pod.url, message, "use the same name or path on all pods", peer=first.url)


def _hashes(fleet: Sequence[PodFacts]) -> Iterator[Finding]:
    agreement = Agreement()
    for pod in fleet:
        for rank in pod.ranks:
            if rank.common is None:
                continue
            for found in agreement.observe(Publisher(pod.url, rank.rank), pod.model or "", rank.common):
                message, fix = _FIXES[found.matter]
                yield Finding("FAIL", found.matter, found.pod, f"{message}: every pull is a miss", fix, found.peer)


def _announced(fleet: Sequence[PodFacts]) -> int:
    return sum(any(rank.common is not None for rank in pod.ranks) for pod in fleet)


def _versions(fleet: Sequence[PodFacts]) -> Iterator[Finding]:
    """Peers of two releases refuse each other, and the gateway does not pair them; patches of one may differ."""
    first, *others = fleet
    for pod in others:
        if pod.version == first.version or pod.version is None or first.version is None:
            continue
        message = f"vLLM {pod.version} here, {first.version} there"
        if _release(pod.version) != _release(first.version):
            yield Finding(
                "FAIL", "version", pod.url, f"{message}: they refuse each other", "run one version", first.url
            )
        else:
            yield Finding("note", "version", pod.url, message, peer=first.url)


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def _identities(fleet: Sequence[PodFacts]) -> Iterator[Finding]:
    told = [pod for pod in fleet if pod.identity is not None]
    for pod in told[1:]:
        mine, theirs = pod.identity or {}, told[0].identity or {}
        for key in sorted(mine.keys() | theirs.keys()):
            here, there = mine.get(key), theirs.get(key)
            if here is there is None:
                continue
            if here is None or there is None:
                who = told[0] if here is None else pod
                yield Finding("note", "identity", pod.url, f"only {who.url} tells its {key}", peer=told[0].url)
            elif here != there:
                message = f"{key} is {here!r:.80} here, {there!r:.80} there: they refuse each other"
                yield Finding("FAIL", "identity", pod.url, message, f"start both with the same {key}", told[0].url)
