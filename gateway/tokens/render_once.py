"""Prompts are rendered once: pods that take token ids with a chat are given those that placed it.

Where messages hold more than text, or `echo` is set, the engine renders them all the same; such requests go without.
"""

from __future__ import annotations

import xxhash

from gateway.openai import Peek
from gateway.pod import Pod
from gateway.tokens.prompt import Prompt
from gateway.tokens.questions import given

# One request in so many goes without ids, so that the engine's own count still tells whether ours are right.
_CHECKED = 32


def ids_to_send(pod: Pod, request_id: str, ask: Peek, prompt: Prompt) -> bytes | None:
    """The prompt's ids as JSON, where the pod takes them and is to have them. O(new ids) and a copy."""
    if not pod.takes_token_ids or not prompt.of_chat or not prompt.whole or given(ask.echo):
        return None
    if len(prompt.sequences) != 1 or xxhash.xxh3_64_intdigest(request_id.encode()) % _CHECKED == 0:
        return None
    return prompt.sequences[0].as_json()
