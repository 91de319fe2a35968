"""TLS towards clients and towards pods, with certificates of an authority that lives as long as the tests."""

import ssl
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from gateway.server import running
from tests.gateway.fleet import Front, client, configuration, fleet, serving, simulated, spec, text_body, until
from tests.gateway.scripted import ScriptedPod, says, scripted

HOST = "127.0.0.1"
OK = says({"ok": True})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, cert: trustme.LeafCert) -> dict[str, str]:
    """A certificate and its key as files, as a section names them."""
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    (folder / "key.pem").write_bytes(cert.private_key_pem.bytes())
    return {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}


def trusted(folder: Path, authority: trustme.CA) -> str:
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return str(folder / "ca.pem")


def trusting(authority: trustme.CA, shown: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """What a client connects with."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if shown is not None:
        shown.configure_cert(context)
    return context


@asynccontextmanager
async def over_tls(tls: dict[str, str], context: ssl.SSLContext, **sections: Any) -> AsyncIterator[Front]:
    async with (
        simulated() as (pod,),
        running(configuration([pod], listen={"tls": tls}, **sections)) as server,
        client(connector=aiohttp.TCPConnector(ssl=context)) as http,
    ):
        assert server.url.startswith("https://")
        front = Front(server, http)
        await front.until_ready(1)
        yield front


async def test_clients_are_served_over_tls(authority: trustme.CA, tmp_path: Path) -> None:
    tls = write(tmp_path, authority.issue_cert(HOST))
    async with over_tls(tls, trusting(authority)) as front:
        await front.complete([1, 2, 3])
        stream = await front.post("/v1/completions", text_body([1], stream=True, max_tokens=20))
        assert stream.body.endswith(b"data: [DONE]\n\n")
        async with client() as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get(f"{front.url}/health")


async def test_only_clients_with_a_certificate_may_connect(
    authority: trustme.CA, stranger: trustme.CA, tmp_path: Path
) -> None:
    tls = write(tmp_path, authority.issue_cert(HOST)) | {"client_ca": trusted(tmp_path, authority)}
    async with over_tls(tls, trusting(authority, authority.issue_cert("client@example.org"))) as front:
        await front.complete([1])
        for shown in (None, stranger.issue_cert("client@example.org")):
            async with client(connector=aiohttp.TCPConnector(ssl=trusting(authority, shown))) as http:
                with pytest.raises((aiohttp.ClientError, ConnectionError)):
                    await http.get(f"{front.url}/health")


async def test_a_renewed_certificate_serves_without_a_restart(
    authority: trustme.CA, stranger: trustme.CA, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    async with over_tls(write(tmp_path, authority.issue_cert(HOST)), trusting(authority)) as front:
        (tmp_path / "cert.pem").write_text("half a certif")

        async def failed() -> bool:
            return await front.metric("file_reloads_total", file="tls", result="failed") >= 1

        await until(failed)
        async with client(connector=aiohttp.TCPConnector(ssl=trusting(authority))) as http:
            assert (await http.get(f"{front.url}/health")).status == 200
        write(tmp_path, stranger.issue_cert(HOST))

        async def renewed() -> bool:
            return await front.metric("file_reloads_total", file="tls", result="ok") >= 1

        await until(renewed)
        async with client(connector=aiohttp.TCPConnector(ssl=trusting(stranger))) as http:
            assert (await http.get(f"{front.url}/health")).status == 200
    assert any(entry["event"].startswith("changed file not used") for entry in log)


async def test_plain_http_on_a_tls_port_gets_no_answer(authority: trustme.CA, tmp_path: Path) -> None:
    async with over_tls(write(tmp_path, authority.issue_cert(HOST)), trusting(authority)) as front, client() as http:
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await http.get(front.url.replace("https", "http") + "/health")
        await front.complete([1])


@asynccontextmanager
async def tls_pod(cert: trustme.LeafCert, clients: trustme.CA | None = None) -> AsyncIterator[ScriptedPod]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    cert.configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    async with scripted(tls=context, completions=OK) as pod:
        yield pod


async def test_pods_are_reached_over_tls_and_checked(
    authority: trustme.CA, stranger: trustme.CA, tmp_path: Path
) -> None:
    upstream = {"ca": trusted(tmp_path, authority)}
    async with tls_pod(authority.issue_cert(HOST)) as pod, serving([pod], upstream_tls=upstream) as front:
        assert (await front.complete([1])).pod == pod.url
    for cert in (stranger.issue_cert(HOST), authority.issue_cert("elsewhere.example.org")):
        async with tls_pod(cert) as pod, serving([pod], ready=0, upstream_tls=upstream) as front:

            async def refused(front: Front = front) -> bool:
                return await front.metric("polls_total", result="pod_unreachable") > 0

            await until(refused)
            assert pod.asked == []


async def test_without_verification_any_pod_is_trusted(stranger: trustme.CA) -> None:
    async with tls_pod(stranger.issue_cert("x.org")) as pod, serving([pod], upstream_tls={"verify": False}) as front:
        assert (await front.complete([1])).pod == pod.url


async def test_by_default_the_systems_authorities_decide(stranger: trustme.CA) -> None:
    async with tls_pod(stranger.issue_cert(HOST)) as pod, serving([pod], ready=0) as front:

        async def refused() -> bool:
            return "certificate verify failed" in str((await front.row(pod))["reason"])

        await until(refused)


async def test_pods_are_shown_a_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    upstream = write(tmp_path, authority.issue_cert("gateway@example.org")) | {"ca": trusted(tmp_path, authority)}
    async with (
        tls_pod(authority.issue_cert(HOST), clients=authority) as pod,
        serving([pod], upstream_tls=upstream) as front,
    ):
        assert (await front.complete([1])).pod == pod.url


async def test_http_pods_need_none_of_it(authority: trustme.CA, tmp_path: Path) -> None:
    async with fleet(upstream_tls={"ca": trusted(tmp_path, authority)}) as (front, (pod,)):
        assert (await front.complete([1])).pod == pod.url
        assert spec(pod)["url"].startswith("http:")
