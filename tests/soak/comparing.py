"""Whether KV blocks are those of their tokens: what comes next, with them and with ones that are computed at once.

Texts do not say that. A prompt that was computed in several turns has other roundings than one that is computed as a
whole, and where two tokens are about as likely, the other one follows, and then other text. What blocks of other tokens
bring is another distribution altogether.
"""

import json
import urllib.request
from typing import Any, Final

from tests.engine.pods import Pod

_TOP: Final = 5
_ROUNDED: Final = 1.0  # of a logarithm; blocks of other tokens have none of the likeliest in common
_PATIENCE_S: Final = 60.0


def next_tokens(pod: Pod, prompt: list[int], salt: str | None = None) -> dict[str, float]:
    """The likeliest next tokens and the logarithms of their probabilities; with a salt nothing cached is used."""
    body: dict[str, Any] = {"model": pod.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": _TOP}
    if salt is not None:
        body["cache_salt"] = salt
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{pod.url}/v1/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        found: dict[str, float] = json.load(answer)["choices"][0]["logprobs"]["top_logprobs"][0]
    return found


def is_alike(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether each has the other's likeliest token among its own, about as likely."""
    first, second = max(one, key=one.__getitem__), max(other, key=other.__getitem__)
    return all(abs(one.get(token, -99.0) - other.get(token, 0.0)) < _ROUNDED for token in (first, second))
