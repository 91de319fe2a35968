"""`p2p-gateway top`: the fleet in a terminal, from what a gateway answers at `/pods` and `/metrics`."""

from gateway.top.command import register

__all__ = ["register"]
