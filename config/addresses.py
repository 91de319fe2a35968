"""Addresses as the configuration writes them, taken apart and put together."""

from __future__ import annotations

import re

_LAST_PORT = 65535
_HOST = r"\[[0-9a-f:.]+(?:%\w+)?\]|[^\s/?#@:\[\]]+"
_ADDRESS = re.compile(rf"({_HOST}):([0-9]+)", re.IGNORECASE)
_HTTP_URL = re.compile(rf"(https?)://({_HOST})(?::([0-9]+))?/*", re.IGNORECASE)


def http_address(url: str) -> str:
    """`host:port` of an http(s) URL that is nothing but scheme, host and port. Raises ValueError for any other."""
    match = _HTTP_URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url!r} is not scheme, host and port such as http://10.0.0.1:8000")
    scheme, host, port = match[1].lower(), match[2].lower(), match[3]
    return f"{host}:{_port(port, url) if port else 443 if scheme == 'https' else 80}"


def tcp_address(endpoint: str) -> tuple[str, int]:
    """Host (`*` allowed) and port of a ZMQ endpoint `tcp://host:port`. Raises ValueError."""
    if not endpoint.startswith("tcp://"):
        raise ValueError(f"{endpoint!r} is not an endpoint such as tcp://10.0.0.1:5557")
    return split_address(endpoint.removeprefix("tcp://"))


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` → host without brackets, port. Raises ValueError."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        hint = "; an IPv6 host needs brackets" if address.count(":") > 1 else ""
        raise ValueError(f"{address!r} is not host:port{hint}")
    return match[1].strip("[]"), _port(match[2], address)


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_ports(first: int, ranks: int) -> None:
    """Raise ValueError unless every rank has a port, upwards from the first."""
    last = first + ranks - 1
    if last > _LAST_PORT:
        raise ValueError(f"port {first} leaves rank {ranks - 1} none: {last} is over {_LAST_PORT}")


def _port(digits: str, where: str) -> int:
    if not 1 <= (port := int(digits)) <= _LAST_PORT:
        raise ValueError(f"{where!r}: port {digits} is not in 1 … {_LAST_PORT}")
    return port
