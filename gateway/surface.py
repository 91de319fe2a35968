"""What clients can ask, as a table: routes, metrics' labels and the shape of errors all follow from it.

A prompt that can be tokenized now is placed by prefix and load; everything else by load alone. What belongs to a stored
response is placed where that response is, since an engine keeps it in its own memory.

Paths are compared decoded, as an engine compares them: no spelling of a path makes it another one here than there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from aiohttp import hdrs

from gateway.openai import PromptKind
from gateway.tokens.refusal import Reason

Reads = Literal["json", "any", "nothing"]
Placed = Literal["prefix", "load", "response", "here"]
Errors = Literal["openai", "anthropic"]
_GET = (hdrs.METH_GET, hdrs.METH_HEAD)


class Endpoint(NamedTuple):
    """One path.

    `reads`: "json" is read whole whatever its type says, "any" only where its type says JSON, and streams through
    otherwise. `placed`: "response" by the id of a response, in the path or in the body; "here" is not placed, the
    gateway answers. `prompt`: how the prompt is tokenized; None of what is not placed by prefix, for `why`.
    `computes`: whether an engine computes a prompt for it, as its counters tell. `pulls`: whether it pulls for that.
    `timely`: whether a stream's first content comes with the first token. Of a response vLLM says at once that it has
    been created.
    `operators`: needs a key with `admin`.
    """

    path: str
    methods: tuple[str, ...] = (hdrs.METH_POST,)
    reads: Reads = "json"
    placed: Placed = "load"
    prompt: PromptKind | None = None
    why: Reason = "endpoint"
    errors: Errors = "openai"
    computes: bool = True
    pulls: bool = True
    timely: bool = False
    operators: bool = False

    @property
    def label(self) -> str:
        """In metrics and in the log."""
        return self.path if self is not OTHER else "other"


# Any method of any other path below /v1; what its answer is, the pod says.
OTHER = Endpoint("/v1/{path:.*}", (), reads="any")
CHAT = Endpoint("/v1/chat/completions", placed="prefix", prompt="chat/completions", timely=True)
COMPLETIONS = Endpoint("/v1/completions", placed="prefix", prompt="completions", timely=True)
RESPONSES = Endpoint("/v1/responses", placed="response", prompt="responses", why="stored-response")
MESSAGES = Endpoint("/v1/messages", placed="prefix", prompt="messages", errors="anthropic", timely=True)
ENDPOINTS = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    Endpoint("/v1/responses/{id}", (*_GET, hdrs.METH_DELETE), reads="any", placed="response", computes=False),
    Endpoint("/v1/responses/{id}/cancel", reads="any", placed="response", computes=False),
    Endpoint("/v1/responses/{id}/input_items", _GET, reads="any", placed="response", computes=False),
    MESSAGES,
    Endpoint("/v1/messages/count_tokens", errors="anthropic", computes=False),
    Endpoint("/v1/embeddings", placed="prefix", prompt="embeddings", pulls=False),
    Endpoint("/v1/score"),
    Endpoint("/score"),
    Endpoint("/v1/rerank"),
    Endpoint("/rerank"),
    Endpoint("/v2/rerank"),
    Endpoint("/pooling"),
    Endpoint("/classify"),
    Endpoint("/tokenize", computes=False),
    Endpoint("/detokenize", computes=False),
    Endpoint("/v1/audio/transcriptions", reads="any"),
    Endpoint("/v1/audio/translations", reads="any"),
    Endpoint("/v1/models", _GET, reads="nothing", placed="here"),
    Endpoint("/v1/models/{model}", _GET, reads="nothing", placed="here"),
    # These change what one pod serves.
    Endpoint("/v1/load_lora_adapter", reads="any", operators=True, computes=False),
    Endpoint("/v1/unload_lora_adapter", reads="any", operators=True, computes=False),
)
_BY_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}


def endpoint_of(path: str, resource: str) -> Endpoint:
    """What was asked, by its path and by that of the route it matched; OTHER where it is not in the table. O(1)."""
    return _BY_PATH.get(path) or _BY_PATH.get(resource, OTHER)


def errors_of(path: str, endpoint: Endpoint) -> Errors:
    """The shape of errors on a path, and on those below it that are not in the table."""
    return "anthropic" if path.startswith("/v1/messages/") else endpoint.errors
