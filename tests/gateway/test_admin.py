"""What operators ask, on a listener of its own."""

from pathlib import Path

import pytest

from gateway.server import StartError, running
from tests.gateway.fleet import configuration, fleet, simulated, text_body
from tests.gateway.keyring import ENTRIES, ROOT, bearer, write

ASKED = ["/metrics", "/pods", "/index/snapshot"]


async def test_what_operators_ask_is_found_on_their_listener_only() -> None:
    async with fleet(admin={"port": 0}) as (front, (pod,)):
        assert front.operators_url != front.url
        assert front.operators_url.startswith("http://127.0.0.1:")
        await front.complete([1])
        for path in ASKED:
            answer = await front.get(path)
            assert (answer.status, answer.json["error"]["code"]) == (404, "invalid_request")
            async with front.http.get(front.operators_url + path) as found:
                assert found.status == 200
        assert (await front.post("/explain", text_body([1]))).status == 404
        async with front.http.post(f"{front.operators_url}/explain", json=text_body([1])) as explained:
            assert (await explained.json())["chosen"] == pod.url


async def test_clients_are_not_served_there_and_probes_are_answered_on_both() -> None:
    async with fleet(admin={"port": 0}) as (front, (pod,)):
        async with front.http.post(f"{front.operators_url}/v1/completions", json=text_body([1])) as refused:
            assert refused.status == 404
        for base in (front.url, front.operators_url):
            for path in ("/health", "/ready"):
                async with front.http.get(base + path) as answer:
                    assert answer.status == 200
    assert not [request for request in pod.requests if request.path.startswith("/v1")]


async def test_their_listener_asks_for_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    write(keys, ENTRIES)
    async with fleet(admin={"port": 0}, auth={"keys": str(keys)}) as (front, _):
        assert (await front.get("/v1/models")).status == 401
        assert (await front.get("/metrics")).status == 401
        assert (await front.get("/metrics", **bearer(ROOT))).status == 404
        assert await front.metric("refused_total", reason="no_key") == 2


async def test_a_taken_admin_port_is_a_start_error() -> None:
    async with fleet(admin={"port": 0}) as (front, _), simulated() as (pod,):
        port = int(front.operators_url.rpartition(":")[2])
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with running(configuration([pod], admin={"port": port})):
                raise AssertionError("it listens")
