"""Requests that want the same blocks of a peer at once: each names it, and the blocks move once."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.engine.pods import Pod
from tests.engine.pulling import TOKEN_BYTES, ask, computed, counted, fresh_ids

pytestmark = pytest.mark.engine

PREFIX_TOKENS = 6400
AT_ONCE = 4


def test_what_several_requests_want_of_a_peer_at_once_is_moved_once(pods: tuple[Pod, ...]) -> None:
    source, consumer = pods
    prefix = fresh_ids("shared", PREFIX_TOKENS)
    computed(source, prefix)
    prompts = [[*prefix, *fresh_ids(("tail", number), 64)] for number in range(AT_ONCE)]
    before = loaded_bytes(consumer)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(partial(ask, consumer, source=source), prompts))
    assert [answer.cached for answer in answers] == [PREFIX_TOKENS] * AT_ONCE
    # A request that did not wait for the others' pull would have brought blocks of its own to the GPU.
    assert loaded_bytes(consumer) - before == PREFIX_TOKENS * TOKEN_BYTES


def loaded_bytes(pod: Pod) -> float:
    """What a pod has loaded into its GPU's cache, which is where everything that is pulled goes in the end."""
    return counted(pod, "vllm:kv_offload_total_bytes_total", 'transfer_type="CPU_to_GPU"')
