"""aiperf, which loads servers and reports, where it is installed: `make conformance` does that."""

import json
from pathlib import Path

import pytest

from tests.conformance.programs import INSTALLED, run
from tests.gateway.fleet import MODEL, Front

AIPERF = INSTALLED / "aiperf" / "bin"

pytestmark = [
    pytest.mark.skipif(not (AIPERF / "aiperf").exists(), reason="aiperf is not installed"),
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_aiperf_reads_every_answer(front: Front, tmp_path: Path, kind: str) -> None:
    made = await run(AIPERF / "python", Path(__file__).parent / "tokenizer.py", tmp_path / "tokenizer", deadline_s=120)
    assert made.status == 0, made.errors
    ended = await run(
        *(AIPERF / "aiperf", "profile", "--model", MODEL, "--url", front.url, "--endpoint-type", kind, "--streaming"),
        *("--tokenizer", tmp_path / "tokenizer", "--isl", "200", "--osl", "20"),
        *("--request-count", "40", "--concurrency", "8", "--artifact-dir", tmp_path / "told"),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        deadline_s=180,
    )
    assert ended.status == 0, ended.out
    told = json.loads((tmp_path / "told" / "profile_export_aiperf.json").read_bytes())
    assert told["request_count"]["avg"] == 40
    assert told["output_sequence_length"]["avg"] == 20
    assert told.get("error_request_count", {}).get("avg", 0) == 0
    assert await front.metric("requests_total", status="200") >= 40
