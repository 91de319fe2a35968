"""OpenAI's client for Node, where it is installed: `make conformance` does that."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.conformance.programs import INSTALLED, run
from tests.gateway.fleet import MODEL, SLOW, completions, fleet, until

UNHURRIED = msgspec.structs.replace(SLOW, decode_ms=2)

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (INSTALLED / "node_modules" / "openai").exists(),
    reason="OpenAI's client for Node is not installed",
)


async def test_openais_client_for_node_is_served() -> None:
    async with fleet(pod={"profile": UNHURRIED}) as (front, (pod,)):
        env = {"BASE_URL": f"{front.url}/v1", "MODEL": MODEL, "MODULES": str(INSTALLED)}
        ended = await run("node", Path(__file__).parent / "openai_client.mjs", env=env)
        assert ended.status == 0, ended.errors
        told = json.loads(ended.out)
        assert told["chat"] == told["streamed"] != ""
        assert told["usage"] == told["streamedUsage"] == 8
        assert told["left"] == "chat.completion.chunk"
        assert (told["completion"], told["embedding"], told["models"]) == ("text_completion", 8, [MODEL])
        assert told["response"] == "say this"
        assert told["heard"].startswith("300000 bytes, ")
        assert told["errors"] == {
            "missing": ["NotFoundError", 404, "model_not_found", True],
            "wrong": ["BadRequestError", 400, "invalid_value", True],
            "refused": ["BadRequestError", 400, 400, True],  # the pod's word
        }
        await until(lambda: "aborted" in {request.outcome for request in completions(pod)})
        await front.idle()
