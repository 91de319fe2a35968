"""Where a request goes and what it pulls: pure decisions.

A new scorer, picker or filter is one file and one line here; config, schema, metric labels and contract tests follow
from the unions.
"""

from scorers.active_requests import ActiveRequests
from scorers.base import AdapterState, Barred, Candidate, Column, Filter, Picker, PlacementRequest, Role, Scorer
from scorers.costs import Answer, CostChanges, Costs, Prefill, Priors, Pull, Rank
from scorers.expected_ttft import ExpectedTtft
from scorers.kv_source import SourceDecision, SourceReason, choose_source, pullable_tokens, sample_source
from scorers.kv_utilization import KvUtilization
from scorers.label import LabelFilter
from scorers.label_affinity import LabelAffinity
from scorers.latency import Latency
from scorers.load_aware import LoadAware
from scorers.lora_affinity import LoraAffinity
from scorers.max_score import MaxScore
from scorers.no_hit_lru import NoHitLru, is_cold
from scorers.placement import Fault, Placement, place
from scorers.prefix import Prefix
from scorers.prefix_affinity import PrefixAffinityFilter
from scorers.queue import Queue
from scorers.random_pick import RandomPick
from scorers.role import RoleFilter
from scorers.running_requests import RunningRequests
from scorers.samples import Stopwatch, Timed
from scorers.session_affinity import SessionAffinity
from scorers.softmax import Softmax
from scorers.sources import AnySource, ExpectedSource, WeightedSampling
from scorers.token_load import TokenLoad
from scorers.topology_affinity import TopologyAffinity
from scorers.ttft import Forecast
from scorers.utilization import UtilizationFilter
from scorers.weighted_random import WeightedRandom
from scorers.work import alone_s, pulling_seconds, timed

__all__ = [
    "ActiveRequests",
    "AdapterState",
    "Answer",
    "AnyFilter",
    "AnyPicker",
    "AnyScorer",
    "AnySource",
    "Barred",
    "Candidate",
    "Column",
    "CostChanges",
    "Costs",
    "ExpectedSource",
    "ExpectedTtft",
    "Fault",
    "Filter",
    "Forecast",
    "KvUtilization",
    "LabelAffinity",
    "LabelFilter",
    "Latency",
    "LoadAware",
    "LoraAffinity",
    "MaxScore",
    "NoHitLru",
    "Picker",
    "Placement",
    "PlacementRequest",
    "Prefill",
    "Prefix",
    "PrefixAffinityFilter",
    "Priors",
    "Pull",
    "Queue",
    "RandomPick",
    "Rank",
    "Role",
    "RoleFilter",
    "RunningRequests",
    "Scorer",
    "SessionAffinity",
    "Softmax",
    "SourceDecision",
    "SourceReason",
    "Stopwatch",
    "Timed",
    "TokenLoad",
    "TopologyAffinity",
    "UtilizationFilter",
    "WeightedRandom",
    "WeightedSampling",
    "alone_s",
    "choose_source",
    "is_cold",
    "place",
    "pullable_tokens",
    "pulling_seconds",
    "sample_source",
    "timed",
]

AnyScorer = (
    Prefix
    | Queue
    | KvUtilization
    | TokenLoad
    | RunningRequests
    | ActiveRequests
    | LoadAware
    | NoHitLru
    | SessionAffinity
    | LoraAffinity
    | Latency
    | LabelAffinity
    | TopologyAffinity
    | ExpectedTtft
)

AnyPicker = MaxScore | RandomPick | WeightedRandom | Softmax

AnyFilter = RoleFilter | LabelFilter | UtilizationFilter | PrefixAffinityFilter
