"""What a fleet holds of a request's prompts: as events have confirmed it, and as requests under way let expect it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt
from index import Arrival, Cached, Publisher, RadixIndex

_DEFAULT_BLOCK_SIZE = 16  # vLLM's own; where nothing is indexed yet, only what is expected depends on it
_UNKNOWN_SIZES = (_DEFAULT_BLOCK_SIZE,)
_NOTHING = Cached(0, 0, 0)
_NOBODY: Mapping[Publisher, int] = {}
_NOTHING_COMES: Mapping[Publisher, Arrival] = {}


class Outlook(Struct, frozen=True):
    """What a pod is about to make of a request.

    `reused`: prompt tokens that its engine will report as cached, as far as events have confirmed them; None where no
    tokens are known. `uncached`: those that it has to compute, and `square` as in `leases.InFlight`; these go by what
    is expected as well, since of requests that arrive together the engine computes what they share once.
    """

    reused: int | None
    uncached: int
    square: int


class _Sequence(Struct, frozen=True):
    """One of a request's: its length, its keys by namespace and block size, and who holds how many tokens of it."""

    tokens: int
    keys: list[tuple[str, dict[int, array[int]]]]
    cached: dict[Publisher, Cached]
    speculative: Mapping[Publisher, int]


class Matched:
    """Tokens per publisher, summed over a request's sequences: `cached`, and `speculative`, which is unconfirmed.

    `coming`: what is being pulled of its only sequence.
    """

    def __init__(
        self, block_size: int, found: list[_Sequence], coming: Mapping[Publisher, Arrival] = _NOTHING_COMES
    ) -> None:
        self.block_size = block_size
        self.coming = coming
        self._found = found
        if len(found) == 1:
            self.cached, self.speculative = found[0].cached, found[0].speculative
        else:
            self.cached = _summed([sequence.cached for sequence in found])
            self.speculative = _added([sequence.speculative for sequence in found])

    def prompts(self, pod: Pod, model: str | None) -> tuple[array[int], ...]:
        """The keys of what the pod is about to hold, and to tell of, of each sequence in each block size."""
        if model is None or not pod.publishes:
            return ()
        namespace = pod.models[model].namespace
        if len(self._found) == 1 and len(self._found[0].keys) == 1:
            name, sizes = self._found[0].keys[0]
            return tuple(sizes.values()) if name == namespace else ()
        return tuple(
            [keys for each in self._found for name, sizes in each.keys if name == namespace for keys in sizes.values()]
        )

    def outlook(self, publisher: Publisher, source_tokens: int, prompt: Prompt) -> Outlook:
        """For the request on this publisher; a source only exists for a single sequence."""
        if prompt.tokens_from == "none":
            return Outlook(None, 0, 0)
        more = not prompt.whole  # the last token known is not the prompt's last
        reused = uncached = square = 0
        for sequence in self._found:
            tokens = sequence.tokens
            cached = sequence.cached.get(publisher, _NOTHING)
            held = again = reused_tokens(cached, source_tokens, tokens + more, self.block_size)
            if (expected := sequence.speculative.get(publisher, 0)) > again:
                held = max(again, min(expected, tokens - 1))
            if held > tokens:  # noqa: PLR1730 - for speed
                held = tokens
            reused += again
            uncached += tokens - held
            square += tokens * tokens - held * held
        return Outlook(reused, uncached, square)


def match(
    prompt: Prompt,
    model: str | None,
    salt: str | None,
    pods: Sequence[Pod],
    *,
    index: RadixIndex,
    table: PodTable,
    now: float,
) -> Matched:
    """What each publisher holds of the sequences, and is expected to, in each block size that the model's blocks have.

    O(tokens) for a prompt that comes for the first time, then as `RadixIndex.match` and `Expected.match`.
    """
    sizes, block_size = _sizes(model, pods, index)
    expected, coming = table.expected, table.coming
    found: list[_Sequence] = []
    usual = sizes[0] if len(sizes) == 1 and len(sizes[0][1]) == 1 else None  # looked up without a comprehension
    for tokens in prompt.sequences:
        if usual is not None:
            name, (size,) = usual
            keys = [(name, {size: tokens.keys(name, size, salt)})]
        else:
            keys = [(name, {size: tokens.keys(name, size, salt) for size in known}) for name, known in sizes]
        speculative = _NOBODY
        if len(keys) == 1:
            each = keys[0][1]
            cached = index.match(each)
            if expected:
                speculative = expected.match(each, now)
        else:
            cached = _summed([index.match(each) for _, each in keys])
            if expected:
                speculative = _added([expected.match(each, now) for _, each in keys])
        found.append(_Sequence(len(tokens), keys, cached, speculative))
    if coming and len(found) == 1:
        arrivals = [coming.match(each) for _, each in found[0].keys]
        return Matched(block_size, found, {key: value for each in arrivals for key, value in each.items()})
    return Matched(block_size, found)


def _sizes(model: str | None, pods: Sequence[Pod], index: RadixIndex) -> tuple[list[tuple[str, tuple[int, ...]]], int]:
    """The model's namespaces on the pods, each with the block sizes of what is held there; and the largest of these."""
    if model is None or not pods:
        return [], _DEFAULT_BLOCK_SIZE
    first = pods[0].models[model].namespace
    for pod in pods:
        if pod.models[model].namespace != first:
            break
    else:  # as usual: one namespace
        if held := index.block_sizes(first):
            return [(first, held)], held[-1]
    namespaces = _namespaces(model, pods)
    sizes: list[tuple[str, tuple[int, ...]]] = []
    largest = 0
    for namespace in namespaces:
        known = index.block_sizes(namespace)
        if known:
            largest = max(largest, known[-1])
        elif any(pod.publishes for pod in pods):
            known = _UNKNOWN_SIZES
        sizes.append((namespace, known))
    return sizes, largest or _DEFAULT_BLOCK_SIZE


def _namespaces(model: str, pods: Sequence[Pod]) -> list[str]:
    found: list[str] = []
    for pod in pods:
        namespace = pod.models[model].namespace
        if namespace not in found:
            found.append(namespace)
    return found


def _summed(found: Sequence[dict[Publisher, Cached]]) -> dict[Publisher, Cached]:
    if len(found) == 1:
        return found[0]
    total: dict[Publisher, Cached] = {}
    for each in found:
        for publisher, cached in each.items():
            total[publisher] = Cached(*map(sum, zip(total.get(publisher, _NOTHING), cached, strict=True)))
    return total


def _added(found: Sequence[Mapping[Publisher, int]]) -> Mapping[Publisher, int]:
    if len(found) == 1:
        return found[0]
    total: dict[Publisher, int] = {}
    for each in found:
        for publisher, tokens in each.items():
            total[publisher] = total.get(publisher, 0) + tokens
    return total


def reused_tokens(cached: Cached, source_tokens: int, tokens: int, block_size: int) -> int:
    """Prompt tokens, of `tokens`, that an engine will not compute, given what it and its source hold.

    vLLM looks for at most tokens - 1 in its GPU cache, since the last token has to be computed for its logits. Its
    offloading connector continues from there over all full blocks; a block-aligned prompt found to its end there is
    reported as cached as a whole (scheduler and offloading connector, 0.32).
    """
    gpu, cpu, reach = cached
    if source_tokens > reach:  # noqa: PLR1730 - a third of the time, and asked for every request
        reach = source_tokens
    only_gpu_reaches = gpu == reach and reach > cpu and reach > source_tokens
    most = (tokens - only_gpu_reaches) // block_size * block_size
    return reach if reach < most else most  # noqa: FURB136 - likewise
