"""TLS: what a listener shows its clients, and whom this gateway trusts as a pod.

A certificate that is renewed in place serves from the next handshake on; connections that stand keep theirs.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from config.listeners import ServerTls, UpstreamTls
from config.load import ConfigError
from gateway.watch import Watch

_ALPN = ["http/1.1"]


async def server_context(tls: ServerTls, where: str, watch: Watch) -> ssl.SSLContext | None:
    """A listener's context; None: it speaks plain HTTP. Raises ConfigError; `where` is the section's path."""
    if tls.cert is None or tls.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(_ALPN)
    if tls.client_ca is not None:
        _trust(context, tls.client_ca, f"{where}.client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    await _follow(context, tls.cert, tls.key, where, watch)
    return context


async def client_context(tls: UpstreamTls, where: str, watch: Watch) -> ssl.SSLContext:
    """The context of connections to pods, whatever client makes them. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(_ALPN)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is not None:
        _trust(context, tls.ca, f"{where}.ca")
    else:
        context.load_default_certs()
    if tls.cert is not None and tls.key is not None:
        await _follow(context, tls.cert, tls.key, where, watch)
    return context


def _trust(context: ssl.SSLContext, ca: str, where: str) -> None:
    _require_readable(ca, where)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise ConfigError(f"{where}: {ca}: no certificates in PEM: {error.reason or error}") from None


async def _follow(context: ssl.SSLContext, cert: str, key: str, where: str, watch: Watch) -> None:
    def read() -> None:
        """Try them on a context that nobody uses: a pair that does not match would spoil one in use."""
        _require_readable(cert, f"{where}.cert")
        _require_readable(key, f"{where}.key")
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(f"{where}: {cert} and {key} are no pair of certificate and key: {reason}") from None

    def use(_: None) -> None:
        try:
            _load(context, cert, key)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: {cert} and {key} changed while they were read: {error}") from None

    await watch.add("tls", [cert, key], read, use)


def _load(context: ssl.SSLContext, cert: str, key: str) -> None:
    context.load_cert_chain(cert, key, password="")  # without one OpenSSL would ask on the terminal


def _require_readable(file: str, where: str) -> None:
    try:
        Path(file).open("rb").close()
    except OSError as error:
        raise ConfigError(f"{where}: {file}: {error.strerror}") from None
