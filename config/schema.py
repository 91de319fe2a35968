"""The configuration, as the frozen structs that the gateway uses.

YAML decodes straight into these: an unknown key, a wrong type or a value out of range is refused with its path, and
there is no second representation to drift from the first. Durations are seconds, sizes bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from config import presets
from config.addresses import http_address, require_ports, split_address, tcp_address
from config.listeners import Admin, Auth, Listen, UpstreamTls
from config.out_of_tree import OutOfTree
from config.presets import PresetName
from config.section import Port, Positive, Seconds, SecondsOrNone, Section, Share
from scorers import AnyFilter, AnyPicker, AnyScorer, AnySource, ExpectedSource, MaxScore

RetryStatus = Literal[429, 500, 502, 503, 504, 529]  # what speaks of the pod and not of the request


class PodConfig(Section, frozen=True):
    """One vLLM pod.

    `kv_events` and `kv_replay` name rank 0's endpoints; rank r is at port + r. Where `kv_events` is left out, the pod
    is asked (`GET /kv_event_sources`, vLLM ≥ 0.32). `p2p` is `HOST:PORT` of rank 0, exactly as the pod was told to
    advertise it: pods recognise each other by that very string. Left out, it is the host of `url` and the `p2p.port` of
    the configuration. `api_key_file` or `api_key_env` says where the key is that the pod was started with.
    """

    url: str
    role: Literal["both"] = "both"
    kv_events: str | None = None
    kv_replay: str | None = None
    p2p: str | None = None
    data_parallel_size: Positive = 1
    api_key_file: str | None = None
    api_key_env: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        http_address(self.url)
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("api_key_file and api_key_env exclude each other")
        events = None if self.kv_events is None else self._first(tcp_address(self.kv_events))
        replay = None if self.kv_replay is None else self._first(tcp_address(self.kv_replay))
        if self.p2p is not None:
            self._first(split_address(self.p2p))
        if replay is None:
            return
        if events is None:
            raise ValueError("kv_replay needs kv_events beside it")
        if events[0] == replay[0] and abs(events[1] - replay[1]) < self.data_parallel_size:
            raise ValueError(
                f"kv_events and kv_replay share ports: each takes {self.data_parallel_size}, upwards from its own"
            )

    def _first(self, address: tuple[str, int]) -> tuple[str, int]:
        require_ports(address[1], self.data_parallel_size)
        return address

    @property
    def name(self) -> str:
        """`host:port`, the pod's identity."""
        return http_address(self.url)


class TokenizerFiles(Section, frozen=True):
    """Where a model's tokenizer files are, and what its pods were started with that changes their prompts.

    `path`: a directory, or a name on the Hugging Face hub or in its cache; None: what the pods say that they were
    started with. `chat_template` is the file of `--chat-template`; the other fields are the pods' flags of the same
    meaning: `--chat-template-content-format`, `--default-chat-template-kwargs`, `--trust-request-chat-template` and
    `--exclude-tools-when-tool-choice-none`.
    """

    path: str | None = None
    revision: str = "main"
    chat_template: str | None = None
    content_format: Literal["auto", "string", "openai"] = "auto"
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False


class Tokens(Section, frozen=True):
    """How a prompt becomes token ids.

    `local`: with the model's own files, in this process; `pod`: a pod is asked (`POST /tokenize`); `auto`: local where
    the files are at hand and come to what the pods say, else a pod. `path`: where the files of the fleet's only model
    are; `models` says more, by the model's name. `render_once`: pods are given the ids with the request, where they
    take them. `max_concurrent`: prompts at once, per pod that is asked.
    """

    backend: Literal["auto", "pod", "local"] = "auto"
    path: str | None = None
    models: dict[str, TokenizerFiles] = msgspec.field(default_factory=dict)
    render_once: bool = True
    timeout: Seconds = 2.0
    memo_tokens: Annotated[int, Meta(ge=0)] = 8_000_000
    max_batch: Positive = 16
    max_concurrent: Positive = 4
    threads: Positive = 2

    def files(self, model: str) -> TokenizerFiles:
        """What is configured of a model's files."""
        found = self.models.get(model, TokenizerFiles())
        return found if found.path is not None else msgspec.structs.replace(found, path=self.path)


class Placement(Section, frozen=True):
    """Filters drop pods that are not to be chosen; scorers (each 0…1 per pod, times its weight) and the picker do it.

    `preset` stands for scorers and a picker, and excludes both. Beside scorers without a picker that is max-score.
    """

    preset: PresetName | None = None
    scorers: tuple[AnyScorer | OutOfTree, ...] = presets.DEFAULT.scorers
    picker: AnyPicker = presets.DEFAULT.picker
    filters: tuple[AnyFilter, ...] = ()

    def __post_init__(self) -> None:
        if self.preset is not None:
            self._take("scorers", self.preset)
            self._take("picker", self.preset)
        elif self.scorers is not presets.DEFAULT.scorers and self.picker is presets.DEFAULT.picker:
            msgspec.structs.force_setattr(self, "picker", MaxScore())
        twice = [name for name, n in Counter(scorer.name for scorer in self.scorers).items() if n > 1]
        if twice:
            raise ValueError(f"scorer {twice[0]!r} is listed twice")

    def _take(self, part: Literal["scorers", "picker"], preset: PresetName) -> None:
        """Have what the preset says; what is given besides may at most say the same."""
        given, meant = getattr(self, part), getattr(presets.PRESETS[preset], part)
        if given is not getattr(presets.DEFAULT, part) and given != meant:  # a default is the very same object
            raise ValueError(f"preset and {part} exclude each other")
        msgspec.structs.force_setattr(self, part, meant)


class PullBreaker(Section, frozen=True):
    """When pulls that fail are tried again.

    After a failure the pair is tried after `cooldown`, after each further one in a row twice as late, up to
    `max_cooldown`. A source from which pulls of `consumers` ranks failed in a row is named to nobody.
    """

    cooldown: Seconds = 2.0
    max_cooldown: Seconds = 300.0
    consumers: Positive = 2


class P2P(Section, frozen=True):
    """Pulls between pods. `source` says who is named of the peers that lead the chosen pod by at least
    `min_cached_token_delta` tokens; `auto`: by as many as make pulling them quicker than computing, by what the pair's
    pulls have cost so far.

    `probe`: pods may be given small prompts of this gateway's own. Each that comes up is given the same one, so that
    their events show at once whether they hash alike; pods that do not can never pull from each other. A pair whose
    pull failed tries with another one; without `probe` with the next request.

    `first_byte_deadline`: how long a request that pulls may be without a first byte once it is its turn, before it goes
    again without a source; `auto`: what it would have taken without, and a margin, within `deadline_floor` and
    `deadline_cap`; None: as long as any. `port_probe_interval`: between two looks whether a pod listens where it serves
    pulls; None: it is believed to.
    """

    enabled: bool = True
    port: Port = 5710
    probe: bool = True
    min_cached_token_delta: Positive | Literal["auto"] = "auto"  # noqa: S105 - of a prompt
    source: AnySource = ExpectedSource()
    first_byte_deadline: Seconds | Literal["auto"] | None = "auto"
    deadline_floor: Seconds = 1.0
    deadline_cap: Seconds = 4.0
    port_probe_interval: Seconds | None = 10.0
    breaker: PullBreaker = PullBreaker()

    def __post_init__(self) -> None:
        if self.deadline_floor > self.deadline_cap:
            raise ValueError("deadline_floor is over deadline_cap")
        if self.breaker.cooldown > self.breaker.max_cooldown:
            raise ValueError("breaker: cooldown is over max_cooldown")

    @property
    def floor(self) -> int | None:
        """Tokens, None: the costs decide."""
        return None if isinstance(self.min_cached_token_delta, str) else self.min_cached_token_delta


class Costs(Section, frozen=True):
    """`path`: a file in which what was learned of the pods' speed survives a restart; None: it does not.

    It is written every `save_interval`, and when the gateway stops.
    """

    path: str | None = None
    save_interval: Seconds = 60.0


class Index(Section, frozen=True):
    """`max_blocks`: how many blocks, each counted once per pod and tier, are remembered; None: what the pods hold."""

    max_blocks: Positive | None = None


class Poll(Section, frozen=True):
    """How pods are watched: `/health` and `/metrics` every `interval`; down after `failures` failed polls in a row.

    `stall_after`: a pod that says it computes, and shows no progress for so long, gets no requests while another can
    serve; None: it does.
    """

    interval: Seconds = 1.0
    timeout: Seconds = 3.0
    failures: Positive = 2
    max_age: Seconds = 10.0
    stall_after: Seconds | None = 30.0


class Limits(Section, frozen=True):
    """Bounds on requests. `attempts` counts the first try; a retry never goes to the same pod.

    `retry_statuses`: answers for which another pod is asked. `retry_budget`: retries as a share of the requests under
    way or lately ended, a few besides.

    After SIGTERM requests are still taken for `drain_delay`, while /ready already says no; then those under way have
    `drain_timeout` to end.
    """

    max_body: Positive = 64 * 1024 * 1024
    max_request_line: Positive = 8192
    max_header: Positive = 8192
    max_headers: Positive = 128
    max_concurrent: Positive | None = None
    max_concurrent_per_pod: Positive | None = None
    header_timeout: Seconds = 30.0
    keep_alive: Seconds = 3600.0
    attempts: Positive = 3
    retry_statuses: tuple[RetryStatus, ...] = (502, 503, 504)
    retry_budget: Share = 0.2
    connect_timeout: Seconds = 2.0
    first_byte_timeout: Seconds = 600.0
    idle_timeout: Seconds = 300.0
    drain_delay: SecondsOrNone = 0.0
    drain_timeout: Seconds = 30.0


class Admission(Section, frozen=True):
    """Holds requests back while every rank that could serve them is at one of these bounds; None: not looked at.

    `max_in_flight` and `max_in_flight_tokens` are of this gateway's own requests, and of their prompts' tokens that are
    still to be computed; `max_waiting` and `max_kv_usage` are of what pods say. At most `queue` requests wait, each for
    `timeout` at most. `priority_header` says how urgent one is, -100 … 100.
    """

    enabled: bool = False
    max_in_flight: Positive | None = None
    max_in_flight_tokens: Positive | None = None
    max_waiting: Positive | None = None
    max_kv_usage: Annotated[float, Meta(gt=0, le=1)] | None = None
    queue: Annotated[int, Meta(ge=0)] = 1000
    timeout: Seconds = 30.0
    priority_header: Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")] = "x-gateway-priority"

    def __post_init__(self) -> None:
        bounds = (self.max_in_flight, self.max_in_flight_tokens, self.max_waiting, self.max_kv_usage)
        if self.enabled and all(bound is None for bound in bounds):
            raise ValueError("enabled needs max_in_flight, max_in_flight_tokens, max_waiting or max_kv_usage beside it")


class Breaker(Section, frozen=True):
    """A pod that failed `failures` requests in a row is left out for `cooldown`, then tried with one request."""

    failures: Positive = 3
    cooldown: Seconds = 5.0


class Log(Section, frozen=True):
    """One JSON object per line on standard error, or text for a person."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "text"


class AccessLog(Section, frozen=True):
    """One JSON object per request, to `path`, None: standard error.

    `sample` is the share of requests that get a line; with `always_errors` those that failed get one in any case.
    `client_address`: with the address that the request came from.
    """

    enabled: bool = True
    path: str | None = None
    sample: Share = 1.0
    always_errors: bool = True
    client_address: bool = False


class DecisionLog(Section, frozen=True):
    """One JSON object per decision, to `path`, None: standard error.

    `sample` is the share of decisions that get a line, `full_sample` the share of those whose line has all that the
    decision was made of, so that `p2p-loadgen replay-decisions` can make it again.
    """

    enabled: bool = False
    path: str | None = None
    sample: Share = 1.0
    full_sample: Share = 0.0


class Explain(Section, frozen=True):
    """`header`: a request with `x-gateway-explain: 1` gets its own decision with its answer, whoever sends it."""

    header: bool = False


class Config(Section, frozen=True):
    """The whole file. Only `pods` has no default."""

    pods: Annotated[tuple[PodConfig, ...], Meta(min_length=1)]
    listen: Listen = Listen()
    admin: Admin = Admin()
    auth: Auth = Auth()
    upstream_tls: UpstreamTls = UpstreamTls()
    tokens: Tokens = Tokens()
    placement: Placement = Placement()
    p2p: P2P = P2P()
    costs: Costs = Costs()
    index: Index = Index()
    poll: Poll = Poll()
    limits: Limits = Limits()
    admission: Admission = Admission()
    breaker: Breaker = Breaker()
    log: Log = Log()
    access_log: AccessLog = AccessLog()
    decision_log: DecisionLog = DecisionLog()
    explain: Explain = Explain()

    def __post_init__(self) -> None:
        twice = [name for name, n in Counter(pod.name for pod in self.pods).items() if n > 1]
        if twice:
            raise ValueError(f"pod {twice[0]} is listed twice")
        for pod in self.pods:
            if pod.p2p is None:
                require_ports(self.p2p.port, pod.data_parallel_size)

    def p2p_addresses(self) -> dict[str, tuple[str, int] | None]:
        """Where each pod serves pulls, by the pod's name.

        None where it is not known: a default address that several pods of one host would share is nobody's.
        """
        default = {pod.name: (pod.name.rpartition(":")[0].strip("[]"), self.p2p.port) for pod in self.pods}
        addresses = {pod.name: split_address(pod.p2p) if pod.p2p else default[pod.name] for pod in self.pods}
        holders = Counter(addresses.values())
        return {
            pod.name: None if pod.p2p is None and holders[addresses[pod.name]] > 1 else addresses[pod.name]
            for pod in self.pods
        }
