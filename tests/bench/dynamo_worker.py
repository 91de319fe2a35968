"""A worker for Dynamo's frontend that answers as `backend` does: `python dynamo_worker.py MODEL_DIRECTORY NAME`.

Dynamo's frontend speaks to workers of its own runtime only, not to an OpenAI server, so it cannot stand in front of the
same backends. This one does as little: a token at once, the next ones of a longer answer every 5 ms. Runs in the
peer's environment, on the standard library and the peer.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvloop
from dynamo.llm import KvEventPublisher, ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker

BLOCK_TOKENS = 16
CHUNK_INTERVAL_S = 0.005
TOKEN = 66  # a letter
LONG_TOKENS = 4096
CACHED_PROMPTS = 16  # the first long ones, which are those that the load repeats


def chained(tokens: list[int]) -> Iterator[int]:
    """The hashes of the whole blocks; equal beginnings have equal ones."""
    parent = 0
    for at in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        parent = hash((parent, *tokens[at : at + BLOCK_TOKENS]))
        yield parent


@dynamo_worker()
async def serve(runtime: DistributedRuntime, directory: str, name: str) -> None:
    """Until it is stopped."""
    endpoint = runtime.endpoint("bench.backend.generate")
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        directory,
        name,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK_TOKENS,
    )
    publisher = KvEventPublisher(endpoint, kv_block_size=BLOCK_TOKENS)
    cached: set[int] = set()

    async def generate(request: dict[str, Any], context: object = None) -> AsyncIterator[dict[str, Any]]:
        tokens = request["token_ids"]
        if len(tokens) >= LONG_TOKENS and len(cached) < CACHED_PROMPTS and (key := hash(tuple(tokens))) not in cached:
            cached.add(key)
            hashes = list(chained(tokens))
            publisher.publish_stored(tokens[: len(hashes) * BLOCK_TOKENS], [BLOCK_TOKENS] * len(hashes), hashes)
        for _ in range(request["stop_conditions"]["max_tokens"] - 1):
            yield {"token_ids": [TOKEN]}
            await asyncio.sleep(CHUNK_INTERVAL_S)
        yield {"token_ids": [TOKEN], "finish_reason": "stop"}

    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
