import hashlib
import sys
from types import SimpleNamespace as Part
from typing import Any

import pytest

from engine_patch.identity import IdentityPlugin, identity


def configuration(**changed: Any) -> Any:
    """As vLLM's, as far as it is read."""
    parts = {
        "model_config": Part(model="/models/m", revision=None, dtype="torch.bfloat16"),
        "cache_config": Part(prefix_caching_hash_algo="sha256", cache_dtype="auto", block_size=16),
        "parallel_config": Part(tensor_parallel_size=2, pipeline_parallel_size=1, decode_context_parallel_size=1),
        "kv_transfer_config": Part(kv_connector_extra_config={"block_size": 64}),
    }
    return Part(**(parts | changed))


def test_it_tells_what_peers_must_share() -> None:
    assert identity(configuration(), "0.32", lambda name: name.encode()) == {
        "model": "/models/m",
        "revision": None,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "offload_block_size": 64,
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "decode_context_parallel": 1,
        "hash_algorithm": "sha256",
        "hash_seed": hashlib.sha256(b"sha256").hexdigest()[:16],
        "engine_release": "0.32",
    }


def test_a_pod_that_does_not_offload_has_its_own_blocks() -> None:
    facts = identity(configuration(kv_transfer_config=None), "0.32", lambda _: b"")
    assert facts["offload_block_size"] == 16


@pytest.mark.parametrize(
    ("extra", "tokens"),
    [({"blocks_per_chunk": 8}, 128), ({"blocks_per_chunk": "2"}, 32), ({"block_size": "64"}, 64), ({}, 16)],
)
def test_a_chunk_may_be_given_in_blocks(extra: dict[str, Any], tokens: int) -> None:
    facts = identity(configuration(kv_transfer_config=Part(kv_connector_extra_config=extra)), "0.32", lambda _: b"")
    assert facts["offload_block_size"] == tokens


def test_a_seed_that_only_the_engine_knows_is_not_told() -> None:
    assert identity(configuration(), "0.32", lambda _: None)["hash_seed"] is None


def test_other_seeds_are_told_apart_and_none_is_told() -> None:
    facts = [identity(configuration(), "0.32", lambda _, seed=seed: seed) for seed in (b"first", b"second")]
    assert facts[0]["hash_seed"] != facts[1]["hash_seed"]
    assert "first" not in str(facts[0])


class App:
    def __init__(self) -> None:
        self.routes: dict[str, Any] = {}

    def add_api_route(self, path: str, answer: Any, methods: list[str]) -> None:
        assert methods == ["GET"]
        self.routes[path] = answer


async def test_an_engine_that_is_not_as_expected_costs_the_facts_and_not_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", Part())
    monkeypatch.setitem(sys.modules, "vllm.version", Part(__version_tuple__=(0, 99, 0)))
    plugin, app = IdentityPlugin(), App()
    plugin.attach_router(app)
    await plugin.init_state(Part(vllm_config=Part()), object(), object())
    (line,) = caplog.messages
    assert line.startswith("/kv/identity has nothing to tell: AttributeError: ")
    with pytest.raises(ImportError):  # as below
        await app.routes["/kv/identity"]()


async def test_a_server_without_an_engine_starts_all_the_same() -> None:
    plugin, app = IdentityPlugin(), App()
    plugin.attach_router(app)
    await plugin.init_state(None, object(), object())
    assert list(app.routes) == ["/kv/identity"]
    with pytest.raises(ImportError):  # FastAPI is vLLM's, and not here: there it is an answer 503
        await app.routes["/kv/identity"]()
