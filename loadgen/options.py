"""How a simulated pod is set up, and what has arrived at it."""

from typing import Literal, TypeAlias

import msgspec

from loadgen.events import Encoding, HashMode
from loadgen.hashing import HashAlgo
from loadgen.profile import PROFILES, PodProfile
from loadgen.publisher import REPLAY_HWM

Outcome: TypeAlias = Literal["running", "finished", "aborted", "failed"]


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's flags, in vLLM's terms.

    Ports of 0 are chosen by the system; rank r's events, replay and P2P ports are the base + r. ``seed`` is
    PYTHONHASHSEED (None: unset), ``prompt_tokens_details`` is --enable-prompt-tokens-details. ``root`` is the model's
    path, which peers compare. ``loras`` maps adapter names to paths. Without ``event_sources`` the pod does not tell
    where its events are (before 0.32). A replay whose reader falls ``replay_hwm`` batches behind loses what follows, as
    vLLM's does (0: nothing is lost). A step's batch of events leaves ``event_delay_ms`` after it (real time). With
    ``faults`` anybody may ask for them: POST /fault.
    """

    profile: PodProfile = PROFILES["demo"]
    model: str = "demo-model"
    root: str = "/models/demo-model"
    loras: dict[str, str] = {}
    encoding: Encoding = "map"
    hash_mode: HashMode = "int"
    hash_algo: HashAlgo = "sha256"
    seed: str | None = "0"
    topic: str = ""
    self_describing: bool = True
    offload_prompt_only: bool = False
    replay: bool = True
    replay_hwm: int = REPLAY_HWM
    event_delay_ms: float = 0.0
    event_sources: bool = True
    prompt_tokens_details: bool = True
    faults: bool = False
    ranks: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    events_port: int = 0
    replay_port: int = 0
    p2p_port: int = 0


class Received:
    """A POST that arrived, ``body`` as sent; ``status``, ``rank`` and ``cached_tokens`` are None until they are known.

    outcome: "running" until the answer is complete ("finished") or refused ("failed"), or the client left ("aborted").
    """

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers  # names in lower case
        self.body = body
        self.outcome: Outcome = "running"
        self.status: int | None = None
        self.rank: int | None = None
        self.cached_tokens: int | None = None

    @property
    def json(self) -> dict[str, object]:
        """The body as an object."""
        decoded: dict[str, object] = msgspec.json.decode(self.body, type=dict[str, object])
        return decoded
