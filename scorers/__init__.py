"""Where a request goes and what it pulls: pure decisions.

A new scorer is one file and one line here; config, schema, metric labels and contract tests follow from the union.
"""

from scorers.base import Candidate, Picker, PlacementRequest, Scorer
from scorers.kv_source import SourceDecision, SourceReason, choose_source, pullable_tokens, sample_source
from scorers.kv_utilization import KvUtilization
from scorers.max_score import MaxScore
from scorers.placement import Placement, place
from scorers.prefix import Prefix
from scorers.queue import Queue
from scorers.random_pick import RandomPick
from scorers.token_load import TokenLoad
from scorers.weighted_random import WeightedRandom

__all__ = [
    "AnyPicker",
    "AnyScorer",
    "Candidate",
    "KvUtilization",
    "MaxScore",
    "Picker",
    "Placement",
    "PlacementRequest",
    "Prefix",
    "Queue",
    "RandomPick",
    "Scorer",
    "SourceDecision",
    "SourceReason",
    "TokenLoad",
    "WeightedRandom",
    "choose_source",
    "place",
    "pullable_tokens",
    "sample_source",
]

AnyScorer = Prefix | Queue | KvUtilization | TokenLoad

AnyPicker = MaxScore | RandomPick | WeightedRandom
