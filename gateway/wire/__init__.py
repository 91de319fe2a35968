"""An HTTP/1.1 client for what a proxy does: pooled connections, bytes as they come, nothing in between.

A general client decodes, redirects, keeps cookies and makes objects that a proxy throws away. This one writes a head
that was built once, hands out body pieces as the peer sent them, and puts the connection back. It sets no deadline but
the one for connecting; whoever calls it has the others.
"""

from gateway.wire.answer import Answer
from gateway.wire.errors import ConnectError, ConnectTimeout, Disconnected, ProtocolError, WireError
from gateway.wire.pool import Origin, Pool
from gateway.wire.shape import Shape

__all__ = [
    "Answer",
    "ConnectError",
    "ConnectTimeout",
    "Disconnected",
    "Origin",
    "Pool",
    "ProtocolError",
    "Shape",
    "WireError",
]
