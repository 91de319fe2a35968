import ssl

import pytest
import trustme

from gateway.errors import PodDisconnected, PodUnreachable
from gateway.upstream import pod_io
from gateway.wire import ConnectError, ConnectTimeout, Disconnected, Origin, ProtocolError
from tests.gateway.wire.peer import OK, answers, once, peer, pool, rest


@pytest.mark.parametrize(
    ("url", "host", "port", "authority"),
    [
        ("http://pod", "pod", 80, b"pod"),
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, b"10.0.0.1:8000"),
        ("http://[::1]:8000", "::1", 8000, b"[::1]:8000"),
    ],
)
def test_an_origin_is_read_from_a_url(url: str, host: str, port: int, authority: bytes) -> None:
    assert Origin.of(url) == Origin(host, port, authority)


def test_https_is_443_and_needs_a_context() -> None:
    context = ssl.create_default_context()
    assert Origin.of("https://pod", context).port == 443
    for url, tls in (("https://pod", None), ("http://pod", context), ("ftp://pod", None), ("http://", None)):
        with pytest.raises(ValueError, match=r"URL|context"):
            Origin.of(url, tls)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


async def test_tls_carries_requests_over_kept_connections(authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    big = b"x" * 1_000_000
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(big), big)
    async with peer(answers(raw), tls=server_tls) as there, pool() as ours:
        for _ in range(2):
            async with await ours.request(there.origin(context), b"POST", b"/", (), big) as answer:
                assert await rest(answer) == big
        assert there.connections == 1


async def test_an_untrusted_certificate_is_a_failed_connection(server_tls: ssl.SSLContext) -> None:
    async with peer(answers(OK), tls=server_tls) as there, pool() as ours:
        with pytest.raises(ConnectError, match=r"(?i)certificate"):
            await once(ours, there.origin(ssl.create_default_context()))
        assert ours.open == 0


async def test_tls_contexts_do_not_share_connections(authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
    async with peer(answers(OK), tls=server_tls) as there, pool() as ours:
        for _ in range(2):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            assert await once(ours, there.origin(context)) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize(
    ("error", "translated"),
    [
        (ConnectError("refused"), PodUnreachable),
        (ConnectTimeout("late"), PodUnreachable),
        (Disconnected("gone"), PodDisconnected),
        (ProtocolError("garbage"), PodDisconnected),
    ],
)
async def test_the_border_translates_each_error(error: Exception, translated: type[Exception]) -> None:
    with pytest.raises(translated, match=f"pod: {error}"):
        async with pod_io("pod", deadline=10):
            raise error
