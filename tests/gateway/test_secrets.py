"""No secret is written anywhere: not to the log at its most talkative, not into an error, not into what parts show."""

import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from config.keys import ApiKey
from gateway.credentials import Credentials
from gateway.keys import Keys
from tests.gateway.fleet import connection, serving, text_body, until
from tests.gateway.keyring import bearer, write
from tests.gateway.scripted import breaks_off, never, says, scripted

CLIENTS, OPERATORS, PODS, UNKNOWN = "sk-of-the-client", "sk-of-the-operator", "sk-of-the-pod", "sk-of-nobody"
SECRETS = (CLIENTS, OPERATORS, PODS, UNKNOWN)


@pytest.fixture
def told(log: list[MutableMapping[str, Any]], caplog: pytest.LogCaptureFixture) -> Any:
    """All that is logged, by structlog and by the libraries, at debug level."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.DEBUG)

    def text() -> str:
        return repr(log) + caplog.text

    return text


async def test_no_secret_is_logged_or_answered(told: Any, tmp_path: Path) -> None:
    keys, pod_key = tmp_path / "keys.yaml", tmp_path / "pod-key"
    entries = [
        {"id": "client", "key": CLIENTS, "models": ["demo-model"]},
        {"id": "op", "key": OPERATORS, "admin": True},
    ]
    write(keys, entries)
    pod_key.write_text(PODS)
    seen = b""
    async with (
        scripted(completions=says({"ok": True}), tokenize=says({"error": "no"}, 401), sources=never) as pod,
        serving(
            [{"url": pod.url, "api_key_file": str(pod_key), "kv_events": "tcp://127.0.0.1:1"}],
            auth={"keys": str(keys)},
            session={"headers": bearer(OPERATORS)},
            log={"level": "debug"},
        ) as front,
    ):
        for headers in (bearer(CLIENTS), {"authorization": "", "x-api-key": CLIENTS}, bearer(UNKNOWN)):
            for body in (text_body("a text"), {"model": "other"}, b"{"):
                seen += (await front.post("/v1/completions", body, headers)).body
        for path in ("/pods", "/metrics", "/ready", "/v1/models"):
            seen += (await front.get(path)).body
        async with connection(front) as (reader, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + CLIENTS.encode() + b"\x00\r\n\r\n")
            seen += await reader.read()
        pod.scripts["/v1/completions"] = breaks_off()
        seen += (await front.post("/v1/completions", text_body([1]), bearer(CLIENTS))).body
        pod.scripts["/health"] = says({}, 401)
        keys.write_text(f"keys: [{{id: a, key: {UNKNOWN}, {CLIENTS}: 1}}]")
        pod_key.write_text(f"{PODS}\n{PODS}")

        async def noticed() -> bool:
            return await front.metric("file_reloads_total", result="failed") == 2

        await until(noticed)
    for secret in SECRETS:
        assert secret not in told()
        assert secret.encode() not in seen


def test_what_holds_secrets_does_not_show_them() -> None:
    key, keys, credentials = ApiKey("client", b"d" * 32), Keys(), Credentials(keyed=True)
    keys.replace([key])
    credentials.use("http://h:1", PODS)
    shown = repr((key, keys, credentials))
    assert PODS not in shown
    assert "dddd" not in shown
