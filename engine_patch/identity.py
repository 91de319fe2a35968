"""`GET /kv/identity`: what a pod must have in common with another one to pull from it.

One flat JSON object. Every fact in it has to be equal on both pods, so that whoever compares needs to know none of
them; what may differ, as the pods' addresses and their kind of tier, is not in it. Nothing of it is secret: it is what
peers tell each other in their greeting, and of the hashes' seed only a digest of what comes of it.

An endpoint plug-in of vLLM: loaded where `VLLM_PLUGINS` names it, `p2p_kv_identity`, in a pod's API server.
"""

import hashlib
import logging
from collections.abc import Callable
from typing import Any

PLUGIN = "p2p_kv_identity"
PATH = "/kv/identity"

Facts = dict[str, str | int | None]

logger = logging.getLogger("vllm.engine_patch.identity")


def identity(config: Any, release: str, none_hash: Callable[[str], bytes | None]) -> Facts:  # noqa: ANN401
    """The facts of a pod with this configuration of vLLM (`VllmConfig`) and release (`0.32`).

    `none_hash` is the hash of nothing, from which the hashes of all blocks are chained, under a hash function of this
    name; None where the process alone knows it. A fact that cannot be told is None.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    extra = config.kv_transfer_config.kv_connector_extra_config if config.kv_transfer_config else {}
    algorithm = str(cache.prefix_caching_hash_algo)
    root = none_hash(algorithm)
    return {
        "model": str(model.model),
        "revision": model.revision,
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "offload_block_size": int(
            extra.get("block_size") or cache.block_size * int(extra.get("blocks_per_chunk") or 1)
        ),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "decode_context_parallel": parallel.decode_context_parallel_size,
        "hash_algorithm": algorithm,
        "hash_seed": None if root is None else hashlib.sha256(root).hexdigest()[:16],
        "engine_release": release,
    }


class IdentityPlugin:
    """The plug-in, as vLLM's `EndpointPlugin` wants it."""

    name = PLUGIN
    required_tasks = None

    def __init__(self) -> None:
        self._facts: Facts | None = None

    def attach_router(self, app: Any) -> None:  # noqa: ANN401
        """Add the route."""

        async def kv_identity() -> Facts:
            if self._facts is None:
                from fastapi import HTTPException  # noqa: PLC0415

                raise HTTPException(503, "this server has no engine")
            return self._facts

        app.add_api_route(PATH, kv_identity, methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:  # noqa: ANN401, ARG002
        """Take the facts from the engine's configuration. A server without an engine has none.

        Neither has one whose configuration is not as expected: a pod serves without them.
        """
        if engine_client is None:
            return
        try:
            from vllm.version import __version_tuple__  # noqa: PLC0415

            release = ".".join(str(part) for part in __version_tuple__[:2])
            self._facts = identity(engine_client.vllm_config, release, _none_hash)
        except Exception as error:  # noqa: BLE001, vLLM would not start for it
            logger.warning("%s has nothing to tell: %s: %s", PATH, type(error).__name__, error)


def _none_hash(algorithm: str) -> bytes | None:
    """As the engine has it, which derives it from the environment of both."""
    from vllm.utils.hashing import get_hash_fn_by_name  # noqa: PLC0415
    from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed  # noqa: PLC0415

    function = get_hash_fn_by_name(algorithm)
    seed = resolve_none_hash_seed(function)
    if seed != resolve_none_hash_seed(function):
        return None  # drawn by each process for itself
    return bytes(function(seed))
