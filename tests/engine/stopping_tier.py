"""A P2P tier that stops its own process at a given moment, as a source that hangs there does. For pods of tests.

The file named by `$STOP_AT` says where; it is removed when the process stops, so that it stops once:

* `lookup`: a peer's lookup has come and is not answered;
* `answered`: it is answered, and the fetch that follows is not served;
* `transfer`: the transfer has been handed to NIXL.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.tiering.p2p.manager import P2PSecondaryTierManager

from engine_patch.p2p_tier import BoundedP2PTier

_ON_ITS_WAY_S = 0.05  # what was handed to ZeroMQ is sent by another thread of the process that stops


class _Stopping(P2PSecondaryTierManager):
    """A tier with a stop."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._stop_at = Path(os.environ["STOP_AT"])
        write = self._data.write_blocks

        def write_and_stop(*args: Any) -> Any:
            transfer = write(*args)
            self._stop("transfer")
            return transfer

        self._data.write_blocks = write_and_stop

    def serve_external_requests(self, parent: Any) -> None:
        asked = any(session._server._serve_pending for session in self._sessions.values())
        if asked:
            self._stop("lookup")
        super().serve_external_requests(parent)
        if asked:
            self._stop("answered")

    def _stop(self, here: str) -> None:
        if self._stop_at.exists() and self._stop_at.read_text() == here:
            self._stop_at.unlink()
            if here != "transfer":
                time.sleep(_ON_ITS_WAY_S)
            os.kill(os.getpid(), signal.SIGSTOP)


class StoppingP2PTier(_Stopping, BoundedP2PTier):
    """The bounded tier, with a stop."""


class StoppingStockTier(_Stopping):
    """vLLM's own tier, with a stop."""

    def __init__(self, *args: Any, tier_type: str = "p2p", **settings: Any) -> None:  # noqa: ARG002
        super().__init__(*args, tier_type="p2p", **settings)
