"""What can go wrong between this process and one peer."""


class WireError(Exception):
    """A request got no answer, or not all of it."""


class ConnectError(WireError):
    """No connection could be made: refused, no such host, a TLS handshake that failed."""


class ConnectTimeout(ConnectError):
    """No connection was made in time."""


class Disconnected(WireError):
    """The connection ended before the answer did."""


class ProtocolError(WireError):
    """The peer sent something that is not HTTP/1.1, or more of a head than is accepted."""
