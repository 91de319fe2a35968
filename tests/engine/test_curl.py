"""curl in front of real pods: one connection, bodies whole and in chunks, answers whole and streamed."""

import json
import shutil
import subprocess

import pytest

from tests.engine.front import Gateway
from tests.engine.pods import Pod

pytestmark = [pytest.mark.engine, pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")]


def test_curl_is_answered_over_one_connection(gateway: Gateway, pods: tuple[Pod, ...]) -> None:
    body = {"model": pods[0].model, "prompt": "Say this", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    told = ("-w", "\n%{num_connects} %{http_code}\n", "-H", "Content-Type: application/json", "--max-time", "60")
    asked = (
        ("-d", json.dumps(body)),
        ("-H", "Transfer-Encoding: chunked", "-d", json.dumps(body)),
        ("-N", "-d", json.dumps(body | {"stream": True})),
    )
    command = ["curl", "-sS"]
    for number, each in enumerate(asked):
        command += [*(("--next", "-sS") if number else ()), *told, *each, f"{gateway.url}/v1/completions"]
    ended = subprocess.run(command, capture_output=True, timeout=180, check=True)
    whole, first, chunked, second, *events, last, _ = ended.stdout.decode().replace("\n\n", "\n").split("\n")
    assert (first, second, last) == ("1 200", "0 200", "0 200")
    text = json.loads(whole)["choices"][0]["text"]
    assert json.loads(chunked)["choices"][0]["text"] == text
    assert sum(event.startswith('data: {"') for event in events) >= 1
    assert "data: [DONE]" in events
