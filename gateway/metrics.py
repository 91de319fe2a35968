"""`p2p_gateway_*`: what an operator graphs.

Counters and histograms (`families`) are moved where things happen, and here by what a request came to; everything that
is a state (pods, index, streams) is read when the page is scraped (`states`).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from gateway import process
from gateway.families import Families
from gateway.labelled import MOST_SERIES, OTHER, Count, Counter, Distribution, Histogram, Sum, Summary
from gateway.pods import PodTable
from gateway.states import TIER_NAMES, OfGateway
from index import RadixIndex

__all__ = ["TIER_NAMES", "Metrics", "Record"]

MOST_MODELS: Final = 256
"""Models that have series of their own; what more pods serve in a gateway's life, adapters mostly, is one: `other`."""


class Record(Struct):
    """What one request came to; filled while it is served, counted once when it ends."""

    started: float
    endpoint: str = "other"
    model: str = ""
    pod: str = ""
    status: int = 500
    first_byte: float | None = None
    placed: float = 0.0
    predicted_ttft: float | None = None
    attempts: int = 0
    source: str = ""
    source_reason: str = ""
    tokens_from: str = "none"
    tokens_reason: str = ""
    prompt_tokens: int | None = None
    predicted_cached: int | None = None
    reported_prompt: int | None = None
    reported_cached: int | None = None
    reported_completion: int | None = None
    broken: str = ""
    engine_error: str = ""
    rendered_once: bool = False
    late_source: str = ""
    key: str = ""
    queued: float | None = None
    streamed: bool = False
    trace: str = ""
    reason: str = ""


class _OfModel:
    """A model's series, found once."""

    __slots__ = ("between", "cached", "duration", "input", "label", "named", "output", "unnamed")

    def __init__(self, metrics: Metrics, label: str) -> None:
        self.label = label
        self.duration: Distribution = metrics.duration.labels(label)
        self.named: Distribution = metrics.ttft.labels(label, "named")
        self.unnamed: Distribution = metrics.ttft.labels(label, "none")
        self.between: Distribution = metrics.between_tokens.labels(label)
        self.input: Count = metrics.model_tokens.labels(label, "input")
        self.cached: Count = metrics.model_tokens.labels(label, "cached")
        self.output: Count = metrics.model_tokens.labels(label, "output")


class _OfPod:
    """A pod's series, found once."""

    __slots__ = ("completion", "predicted", "prompt", "reported", "ttft")

    def __init__(self, metrics: Metrics, pod: str) -> None:
        self.prompt: Count = metrics.prompt_tokens.labels(pod)
        self.completion: Count = metrics.completion_tokens.labels(pod)
        self.predicted: Count = metrics.predicted.labels(pod)
        self.reported: Count = metrics.reported.labels(pod)
        self.ttft: Sum = metrics.pod_ttft.labels(pod)


_Key = tuple[str, str, str, int, str]  # endpoint, model, pod, status, reason


class _Outcome:
    """The series on which all requests count that came to the same, found once; no `of_pod`: they reached none."""

    __slots__ = ("answers", "of_model", "of_pod", "requests")

    def __init__(self, requests: Count, answers: Count, of_model: _OfModel, of_pod: _OfPod | None) -> None:
        self.requests = requests
        self.answers = answers
        self.of_model = of_model
        self.of_pod = of_pod


class Metrics(Families):
    """All collectors of one gateway."""

    def __init__(self, pods: PodTable, index: RadixIndex) -> None:
        super().__init__()
        self._models: dict[str, _OfModel] = {}
        self._pods: dict[str, _OfPod] = {}
        self._outcomes: dict[_Key, _Outcome] = {}
        self.states = OfGateway(pods, index, self.registry)
        process.register(self.registry)

    def forget(self, pod: str) -> None:
        """End every series of a pod that is not configured any more. O(series)."""
        self._pods.pop(pod, None)
        self._outcomes.clear()  # those of other pods as well: there may be room now for series of their own
        for each in vars(self).values():
            if isinstance(each, Counter | Histogram | Summary):
                each.forget(("pod", "source"), pod)

    def decided(self, began: float, matched: float, placed: float, sourced: float) -> None:
        """A decision began, and each of its stages ended, at these moments."""
        self._match.observe(matched - began)
        self._place.observe(placed - matched)
        self._source.observe(sourced - placed)

    def completed(self, record: Record, now: float) -> None:
        """Count a request that has ended."""
        # Here and below counters are moved by hand, not by calls: there are ten of them for every request.
        reason = record.reason or record.broken or record.engine_error
        key = record.endpoint, record.model, record.pod, record.status, reason
        outcome = self._outcomes.get(key) or self._outcome(key)
        outcome.requests.value += 1.0
        outcome.answers.value += 1.0
        if record.key:
            self.key_requests.labels(record.key, record.status).inc()
        of_model, of_pod = outcome.of_model, outcome.of_pod
        if of_pod is None:
            return
        if record.trace:
            of_model.duration.observe_traced(now - record.started, record.trace)
        else:
            of_model.duration.observe(now - record.started)
        if record.first_byte is not None and record.status == 200:
            self._began(record, record.first_byte, of_model, of_pod)
        if record.prompt_tokens is not None:
            of_pod.prompt.value += record.prompt_tokens
        self._reported(record, of_model, of_pod, now)
        if record.broken:
            self.broken.labels(record.pod, record.broken).inc()
        if record.engine_error:
            self.engine_errors.labels(record.pod, record.engine_error).inc()

    def _outcome(self, key: _Key) -> _Outcome:
        """The series of an outcome. It is kept, unless its model is one too many, or it is."""
        endpoint, model, pod, status, reason = key
        of_model = self._models.get(model) or self._of_model(model)
        requests = self.requests.labels(endpoint, of_model.label, pod, status, reason)
        of_pod = (self._pods.get(pod) or self._of_pod(pod)) if pod else None
        found = _Outcome(requests, self._of_status(status, reason), of_model, of_pod)
        if model in self._models and len(self._outcomes) < MOST_SERIES:
            self._outcomes[key] = found
        return found

    def _of_status(self, status: int, reason: str) -> Count:
        """Whether a client was served, and if not, by whose fault; 499, it left, is a client's as well."""
        if status >= 500:
            return self._failed
        if status >= 400:
            return self._client
        return self._failed if reason else self._ok

    def _of_model(self, model: str) -> _OfModel:
        """The series of a model; of one too many, those of all others."""
        label = (model or "unknown") if len(self._models) < MOST_MODELS else OTHER
        found = _OfModel(self, label)
        if label != OTHER:
            self._models[model] = found
        return found

    def _of_pod(self, pod: str) -> _OfPod:
        found = self._pods[pod] = _OfPod(self, pod)
        return found

    def _began(self, record: Record, first_byte: float, of_model: _OfModel, of_pod: _OfPod) -> None:
        ttft = of_model.named if record.source else of_model.unnamed
        if record.trace:
            ttft.observe_traced(first_byte - record.started, record.trace)
        else:
            ttft.observe(first_byte - record.started)
        taken = first_byte - record.placed
        of_pod.ttft.count += 1
        of_pod.ttft.total += taken
        if record.source:
            self.pull_seconds.labels(record.source).observe(taken)
        if record.predicted_ttft is not None and taken > 0 and not record.engine_error:
            self.ttft_error.labels("named" if record.source else "none").observe(record.predicted_ttft / taken)

    def _reported(self, record: Record, of_model: _OfModel, of_pod: _OfPod, now: float) -> None:
        """What the pod said of its work."""
        if record.reported_prompt is not None:
            of_model.input.value += record.reported_prompt
        if (completion := record.reported_completion) is not None:
            of_pod.completion.value += completion
            of_model.output.value += completion
            if completion > 1 and record.streamed and record.first_byte is not None and not record.broken:
                of_model.between.observe((now - record.first_byte) / (completion - 1))
        if (reported := record.reported_cached) is not None:
            of_model.cached.value += reported
            if (predicted := record.predicted_cached) is not None:
                of_pod.predicted.value += predicted
                of_pod.reported.value += reported
                if predicted != reported:
                    self.mispredicted.labels(record.pod, "over" if predicted > reported else "under").inc()
