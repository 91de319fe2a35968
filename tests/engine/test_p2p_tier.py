"""The tier of engine_patch beside vLLM's own, on two real pods: it does the same, and an idle pod of it sleeps."""

import json
import os
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.pod_args import PodParameters
from tests.engine.environment import HERE, EngineEnvironment
from tests.engine.pods import Pod, running
from tests.engine.pulling import TOKEN_BYTES, ask, complete, computed, counted, fresh_ids

pytestmark = pytest.mark.engine

PROMPT_TOKENS = 2000
PULLED_TOKENS = 1984  # whole blocks
MEASURED_S = 8.0
SETTLED_S = 3.0  # what a pod still does after it has come up
IDLE_CORE = 0.05


class Both(NamedTuple):
    patched: Pod
    stock: Pod


@pytest.fixture(scope="module")
def both(engine: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("both")
    # As an installation leaves it: without its entry point vLLM does not know the plug-in.
    installed = directory / "p2p_gateway_engine_patch-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: p2p-gateway-engine-patch\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text(
        "[vllm.endpoint_plugins]\np2p_kv_identity = engine_patch.identity:IdentityPlugin\n"
    )
    path = {"PYTHONPATH": f"{engine.search_path}:{directory}"}
    with running(
        Pod(engine, directory, p2p_tier="patched", variables=path), Pod(engine, directory, variables=path)
    ) as (patched, stock):
        yield Both(patched, stock)


def test_an_idle_pod_sleeps(both: Both) -> None:
    time.sleep(SETTLED_S)
    patched, stock = busy_cores(both.patched, both.stock)
    print(f"\nidle, in cores: patched {patched:.3f}, stock {stock:.3f}")
    assert patched < IDLE_CORE
    assert patched < stock / 4


def test_the_tiers_pull_from_each_other_and_count_it(both: Both) -> None:
    for consumer, source in (both, reversed(both)):
        prompt = fresh_ids(("mixed", consumer.url), PROMPT_TOKENS)
        expected = computed(source, prompt)
        pulled = ask(consumer, prompt, source)
        assert (pulled.text, pulled.cached) == (expected, PULLED_TOKENS)
    peer = f'peer="127.0.0.1:{both.stock.parameters.p2p_port}"'
    assert counted(both.patched, "p2p_tier_pulls_total", peer) == 1
    assert counted(both.patched, "p2p_tier_pull_bytes_total", peer) == PULLED_TOKENS * TOKEN_BYTES
    assert 0 < counted(both.patched, "p2p_tier_pull_seconds_total", peer) < 1
    assert counted(both.patched, "p2p_tier_timeouts_total") == 0
    # Where vLLM counts, it goes on counting under the name that its readers know.
    assert counted(both.patched, "vllm:kv_offload_tiering_read_bytes_total", 'tier="1:p2p"') > 0


def test_a_pull_from_a_sleeping_pod_takes_milliseconds(both: Both) -> None:
    waits = []
    for number in range(5):
        prompt = fresh_ids(("sleeping", number), PROMPT_TOKENS)
        computed(both.patched, prompt)
        time.sleep(1.5)  # longer than any look that it takes by itself
        answer = ask(both.stock, prompt, both.patched)
        assert answer.cached == PULLED_TOKENS
        waits.append(answer.ttft)
    print(f"\npulled from a sleeping pod: {sorted(waits)}")
    assert sorted(waits)[1] < 0.25


def test_a_prefill_on_one_tier_is_decoded_on_the_other(both: Both) -> None:
    for decoder, prefiller in (both, reversed(both)):
        prompt = fresh_ids(("disaggregated", decoder.url), PROMPT_TOKENS)
        leg: dict[str, object] = {"kv_request_id": str(uuid.uuid4())}
        complete(prefiller, prompt, {"max_tokens": 1, "kv_transfer_params": {"remote_decoder": leg}})
        behind = {"remote_host": "127.0.0.1", "remote_port": prefiller.parameters.p2p_port}
        decoded = complete(decoder, prompt, {"kv_transfer_params": {"remote_prefiller": leg | behind}})
        assert decoded.cached == PULLED_TOKENS
        assert decoded.text == ask(prefiller, prompt).text


def test_routing_that_is_none_is_no_routing(both: Both) -> None:
    prompt = fresh_ids("unsound", 200)
    sources: list[Any] = ["a string", {"kv_request_id": ["x"], "remote_host": 5, "remote_port": {}}, {}]
    for source in sources:
        body = {"model": both.patched.model, "prompt": prompt, "max_tokens": 2}
        body["kv_transfer_params"] = {"remote_kv_source": source}
        request = urllib.request.Request(
            f"{both.patched.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200


def test_a_pod_tells_what_its_peers_must_share(both: Both) -> None:
    with urllib.request.urlopen(f"{both.patched.url}/kv/identity", timeout=5) as answer:
        facts = json.load(answer)
    parameters: PodParameters = both.patched.parameters
    assert facts == {
        "model": both.patched.model,
        "revision": None,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "block_size": parameters.tokens_per_block,
        "offload_block_size": parameters.tokens_per_block,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "decode_context_parallel": 1,
        "hash_algorithm": "sha256",
        "hash_seed": facts["hash_seed"],
        "engine_release": "0.32",
    }
    assert len(facts["hash_seed"]) == 16


def busy_cores(*pods: Pod) -> list[float]:
    """How many cores each pod keeps busy, over the same span."""
    before, began = [_busy_s(pod) for pod in pods], time.monotonic()
    time.sleep(MEASURED_S)
    took = time.monotonic() - began
    return [(_busy_s(pod) - start) / took for pod, start in zip(pods, before, strict=True)]


def _busy_s(pod: Pod) -> float:
    ticks = 0
    for process in pod.processes():
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_a_source_that_goes_on_writes_to_no_memory_that_was_given_up(engine: EngineEnvironment) -> None:
    done = subprocess.run(
        [str(engine.python), str(HERE / "two_tiers.py")],
        env={**os.environ, "PYTHONPATH": str(engine.search_path), "VLLM_P2P_HANDSHAKE_TIMEOUT_S": "3"},
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_where_a_name_of_vllm_is_missing_it_is_vllms_own_tier(engine: EngineEnvironment) -> None:
    program = """
import vllm.v1.kv_offload.base
del vllm.v1.kv_offload.base.OffloadingGaugeMetadata
import engine_patch.p2p_tier
print("has", engine_patch.p2p_tier.BoundedP2PTier.__name__)
"""
    done = subprocess.run(
        [str(engine.python), "-c", program],
        env={**os.environ, "PYTHONPATH": str(engine.search_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "has _StockTier" in done.stdout.splitlines()
    assert (done.stdout + done.stderr).count("using vLLM's own P2P tier") == 1


def test_another_version_gets_vllms_own_tier_and_one_warning(engine: EngineEnvironment) -> None:
    program = """
import importlib
import vllm.version
import engine_patch.p2p_tier
for version in (0, 32, 7), (0, 31, 0), (0, 99, 0):
    vllm.version.__version_tuple__ = version
    tier = importlib.reload(engine_patch.p2p_tier).BoundedP2PTier
    print(version, "has", *(each.__name__ for each in tier.__mro__[:2]))
"""
    done = subprocess.run(
        [str(engine.python), "-c", program],
        env={**os.environ, "PYTHONPATH": str(engine.search_path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert [line for line in done.stdout.splitlines() if " has " in line] == [
        "(0, 32, 7) has BoundedP2PTier P2PSecondaryTierManager",
        "(0, 31, 0) has _StockTier P2PSecondaryTierManager",
        "(0, 99, 0) has _StockTier P2PSecondaryTierManager",
    ]
    assert (done.stdout + done.stderr).count("using vLLM's own P2P tier") == 2
