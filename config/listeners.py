"""The sections about who may connect, and how connections are secured, from clients and to pods."""

from __future__ import annotations

from config.section import ListenPort, Section


def _require_both(cert: str | None, key: str | None) -> None:
    if (cert is None) != (key is None):
        raise ValueError("cert and key go together")


class ServerTls(Section, frozen=True):
    """TLS of a listener, PEM files. `client_ca`: only clients with a certificate that it signed may connect."""

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None

    def __post_init__(self) -> None:
        _require_both(self.cert, self.key)
        if self.client_ca is not None and self.cert is None:
            raise ValueError("client_ca needs cert and key beside it")


class Listen(Section, frozen=True):
    """Where the gateway serves. Port 0 takes any free port, which the start-up line then names."""

    host: str = "0.0.0.0"
    port: ListenPort = 8080
    tls: ServerTls = ServerTls()


class Admin(Section, frozen=True):
    """A listener of its own for what only operators ask; None: they ask where everybody does."""

    host: str = "127.0.0.1"
    port: ListenPort | None = None
    tls: ServerTls = ServerTls()


class Auth(Section, frozen=True):
    """`keys`: a file of API keys, of which every request then needs one; `open_metrics`: all but /metrics."""

    keys: str | None = None
    open_metrics: bool = False


class UpstreamTls(Section, frozen=True):
    """How pods behind https:// are trusted, and what this gateway shows them. PEM files.

    `ca`: who signed the pods' certificates; None: who the system trusts. `verify` false trusts anybody.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        _require_both(self.cert, self.key)
        if self.ca is not None and not self.verify:
            raise ValueError("ca and verify: false exclude each other")
