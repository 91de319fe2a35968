"""Where a gateway stands between serving and gone."""

from __future__ import annotations

from gateway.errors import Draining


class Drain:
    """Moved by the process's end, which only goes forwards; read by requests."""

    __slots__ = ("leaving", "over", "refusing")

    def __init__(self) -> None:
        self.leaving = False  # not ready any more; requests are still served, and answers ask clients to go elsewhere
        self.refusing = False  # new requests are refused
        self.over = False  # time is up: what is still under way is told so, and ends

    def require_open(self) -> None:
        """Raise Draining where new requests are refused."""
        if self.refusing:
            raise self.refusal()

    @staticmethod
    def refusal() -> Draining:
        """What a client is told whose request is not served, or not to its end."""
        return Draining("This gateway is shutting down.", code="draining")
