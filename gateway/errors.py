"""What can go wrong with a request, as types.

Two borders translate: pod I/O raises `PodError`s out of aiohttp's exceptions (`proxy`, `tokens`), and `routes` turns
any `GatewayError` into OpenAI's error body. Nothing between them catches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

Rejection = Literal["queue_full", "timeout", "displaced"]
_WHY: Mapping[Rejection, str] = {
    "queue_full": "Every pod has enough to do, and as many requests wait as may.",
    "timeout": "Every pod had enough to do for as long as a request may wait.",
    "displaced": "Every pod has enough to do, and this request's place among those that wait went to another.",
}


class GatewayError(Exception):
    """An answer in the making: HTTP status, OpenAI error type, a short machine-readable code.

    `refused` is the reason, as counted, where the gateway refuses what it could do. `headers` go with the answer.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, *, code: str, param: str | None = None, refused: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param
        self.refused = refused


class RequestError(GatewayError):
    """The client's request cannot be served as it is."""

    status = 400
    type = "invalid_request_error"


class ModelNotFound(RequestError):
    """No pod of the fleet serves that model."""

    status = 404


class ResponseNotFound(RequestError):
    """No pod keeps that response, or the one that did is gone."""

    status = 404


class DecisionNotFound(RequestError):
    """The live page keeps that decision no more, or never did."""

    status = 404


class UnsupportedEncoding(RequestError):
    """A body is packed in a way that this gateway cannot unpack."""

    status = 415


class BodyTooLarge(RequestError):
    """The body is over `limits.max_body`."""

    status = 413


class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    status = 408


class HeadTimeout(RequestError):
    """The request's headers did not arrive in time."""

    status = 408


class HeadTooLarge(RequestError):
    """The request line or the headers are over their limits."""

    status = 431


class Unauthorized(RequestError):
    """No API key, or none that is known."""

    status = 401


class Forbidden(RequestError):
    """The API key does not reach that far."""

    status = 403


class RateLimited(GatewayError):
    """The API key has as many requests under way as it may."""

    status = 429
    type = "rate_limit_error"


class NotAdmitted(GatewayError):
    """Pods that could serve take no more now, and it could not wait until they do. `code` says why.

    `retry_after`: in seconds.
    """

    status = 429
    type = "rate_limit_error"

    def __init__(self, reason: Rejection, *, retry_after: int) -> None:
        super().__init__(_WHY[reason], code=reason)
        self.headers = {"Retry-After": str(retry_after), "x-gateway-rejected": reason}


class NoPodReady(GatewayError):
    """Nobody can serve now; somebody may soon."""

    status = 503
    type = "service_unavailable_error"


class Draining(NoPodReady):
    """This gateway is going away."""


class Overloaded(NoPodReady):
    """As many requests are under way as may be."""


class PodError(GatewayError):
    """A pod did not answer. Retried on another pod as long as the client has seen nothing.

    `blames`: it speaks against the pod, not only against this request. `agreed`: it has been decided that another pod
    is asked.
    """

    status = 502
    type = "bad_gateway_error"
    retryable = True
    blames: ClassVar[bool] = True
    agreed = False


class PodUnreachable(PodError):
    """No connection could be made."""


class PodDisconnected(PodError):
    """The connection broke."""


class PodTimeout(PodError):
    """A deadline passed. Not retried: the pod may still be computing, and another would do it twice."""

    status = 504
    type = "timeout_error"
    retryable = False


class PullLate(PodError):
    """A request that pulls had no first byte in time. Nothing speaks against the pod, and it goes again."""

    status = 504
    blames = False
    agreed = True


class PodUnavailable(PodError):
    """The pod answered 502, 503 or 504."""

    status = 503


class PodRefused(PodError):
    """The pod answered another status of `limits.retry_statuses`: it is alive, and had no answer for this request."""

    status = 503
    blames = False


class EngineFailed(PodError):
    """The pod answered 200, and then with an error or nothing. `reason` is that of `engine_errors`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, code=f"engine_{reason}")
        self.reason = reason


class NotHere(PodError):
    """The pod does not have what was asked for; another one may."""

    status = 404
    blames = False


class PodRejected(PodError):
    """The pod answered something that this gateway cannot use. `offered` false: it does not have what was asked for."""

    retryable = False
    offered = True
