"""Which pod keeps which response: `/v1/responses` stores what it answered in the memory of the pod that answered.

Learned from the first bytes of answers, bounded, and lost with this process. What is not known here is looked for, pod
by pod.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple

from msgspec.structs import replace

from gateway.decision import Ask
from gateway.errors import NoPodReady, ResponseNotFound
from gateway.front.request import Request
from gateway.gate import require_model
from gateway.pod import Pod
from gateway.pods import PodTable

_MOST = 100_000  # some 30 MB
_LONGEST_ID = 128  # a client may choose its response's id

# The first id in an answer is the response's own: it is the first field of the object, and of the first event's.
_ID = re.compile(rb'"id":\s?"([^"\\]{1,%d})"' % _LONGEST_ID)
_LOOKED_AT_BYTES = 4096


class Keeper(NamedTuple):
    """The pod of a response, and its model; None where that has not been seen."""

    pod: str
    model: str | None


class Responses:
    """At most `most` ids; the ones used longest ago are forgotten."""

    def __init__(self, pods: PodTable, most: int = _MOST) -> None:
        self._pods = pods
        self._most = most
        self._keepers: OrderedDict[str, Keeper] = OrderedDict()

    def made(self, piece: bytes, keeper: Keeper) -> None:
        """A pod has made the response that begins with `piece`. O(1)."""
        if (found := _ID.search(piece, 0, _LOOKED_AT_BYTES)) is not None:
            self._keep(found[1].decode("utf-8", "replace"), keeper)

    def found(self, response_id: str, pod: str) -> None:
        """A pod has answered about this response. O(1)."""
        known = self._keepers.get(response_id)
        if len(response_id) <= _LONGEST_ID and (known is None or known.pod != pod):
            self._keep(response_id, Keeper(pod, None))

    def places(self, request: Request, ask: Ask, response_id: str) -> list[str]:
        """Names of the pods to ask for a response, in this order. Raises ResponseNotFound, NoPodReady, Forbidden."""
        ready = [pod for pod in self._pods if pod.state == "ready" and _serves(pod, ask)]
        keeper = self._keepers.get(response_id)
        if keeper is None:
            if not self._pods.ready:
                raise NoPodReady("No pod is ready.", code="no_pod_ready")
            places = [pod.name for pod in ready if _may_be_asked(pod, ask)]
        else:
            self._keepers.move_to_end(response_id)
            require_model(request, keeper.model)
            there = (pod for pod in ready if pod.name == keeper.pod)
            places = [pod.name for pod in there if keeper.model is not None or _may_be_asked(pod, ask)]
        if not places:
            raise not_found(response_id)
        return places

    def narrowed(self, request: Request, ask: Ask) -> Ask:
        """The request; one that needs a response, for those pods only where that may be. Raises as `places`."""
        if ask.response_id is None:
            return ask
        return replace(ask, only=frozenset(self.places(request, ask, ask.response_id)))

    def _keep(self, response_id: str, keeper: Keeper) -> None:
        self._keepers[response_id] = keeper
        self._keepers.move_to_end(response_id)
        if len(self._keepers) > self._most:
            self._keepers.popitem(last=False)


def not_found(response_id: str) -> ResponseNotFound:
    """As vLLM words it."""
    return ResponseNotFound(
        f"Response with id '{response_id[:200]}' not found.", code="response_not_found", param="response_id"
    )


def _serves(pod: Pod, ask: Ask) -> bool:
    return ask.model is None or ask.model in pod.models


def _may_be_asked(pod: Pod, ask: Ask) -> bool:
    return ask.only is None or pod.name in ask.only
