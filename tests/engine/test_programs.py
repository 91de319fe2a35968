"""Other people's programs against real pods, where they are installed: `make conformance` does that."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conformance.programs import INSTALLED, run
from tests.engine.environment import EngineEnvironment
from tests.engine.front import Gateway
from tests.engine.pods import Pod

NODE_CLIENT = Path(__file__).parents[1] / "conformance" / "openai_client.mjs"
AIPERF = INSTALLED / "aiperf" / "bin" / "aiperf"

pytestmark = pytest.mark.engine


@pytest.mark.skipif(
    shutil.which("node") is None or not (INSTALLED / "node_modules" / "openai").exists(),
    reason="OpenAI's client for Node is not installed",
)
async def test_openais_client_for_node_is_served(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    model = pods[0].model
    env = {"BASE_URL": f"{gateway.url}/v1", "MODEL": model, "MODULES": str(INSTALLED)}
    ended = await run("node", NODE_CLIENT, env=env | {"WITHOUT": "embedding,retrieval,hearing"}, deadline_s=120)
    assert ended.status == 0, ended.errors
    told = json.loads(ended.out)
    assert told["chat"] == told["streamed"] != ""
    assert 1 <= told["usage"] == told["streamedUsage"] <= 8
    assert told["left"] == "chat.completion.chunk"
    assert (told["completion"], told["models"]) == ("text_completion", [model])
    assert told["response"] != ""
    assert told["errors"] == {
        "missing": ["NotFoundError", 404, "model_not_found", True],
        "wrong": ["BadRequestError", 400, "invalid_value", True],
        "refused": ["BadRequestError", 400, 400, True],  # the pod's word
    }


@pytest.mark.skipif(not AIPERF.exists(), reason="aiperf is not installed")
@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_aiperf_reads_every_answer(
    gateway: Gateway, engine: EngineEnvironment, pods: tuple[Pod, ...], tmp_path: Path, kind: str
) -> None:
    ended = await run(
        *(AIPERF, "profile", "--model", pods[0].model, "--url", gateway.url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", engine.model, "--isl", "200", "--osl", "20", "--extra-inputs", "ignore_eos:true"),
        *("--request-count", "40", "--concurrency", "4", "--artifact-dir", tmp_path / "told"),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        deadline_s=300,
    )
    assert ended.status == 0, ended.out
    told = json.loads((tmp_path / "told" / "profile_export_aiperf.json").read_bytes())
    assert told["request_count"]["avg"] == 40
    assert told.get("error_request_count", {}).get("avg", 0) == 0
    assert told["output_sequence_length"]["avg"] == pytest.approx(20, rel=0.25)  # counted again from texts
