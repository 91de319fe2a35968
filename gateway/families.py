"""The families of `p2p_gateway_*`: what there is to count, with its labels and buckets.

Label values come from the configuration and from what pods serve, never from a client, so their number is bounded; that
of models, which may come and go with adapters, by `metrics.MOST_MODELS`. docs/metrics.md has them all, and a test says
what is missing there.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter as LockedCounter
from prometheus_client import Gauge

from gateway.exposition import Registry
from gateway.labelled import Counter, Histogram, Summary

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
_PREDICTED_TO_ACTUAL = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_TOKENIZATION_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_DECISION_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MOST_OF_PAIRS: Final = 1_000
"""Series of a metric that counts what happens between two pods; their pairs grow with the square of the fleet."""


class Families:
    """All but what is read when the page is scraped, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = Registry()
        ns = "p2p_gateway"
        self._of_answers(ns)
        self._of_placement(ns)
        self._of_predictions(ns)
        self._of_refusals(ns)
        self._of_pods(ns)
        self._of_itself(ns)
        self._begin_at_zero()

    def _of_answers(self, ns: str) -> None:
        r = self.registry
        self.requests = Counter(
            f"{ns}_requests", "Requests by answer", ["endpoint", "model", "pod", "status", "reason"], registry=r
        )
        self.answers = Counter(f"{ns}_answers", "Requests by whether their clients were served", ["class"], registry=r)
        self._ok, self._client, self._failed = map(self.answers.labels, ("ok", "client", "failed"))
        self.ttft = Histogram(
            f"{ns}_ttft_seconds",
            "From the request's arrival to the answer's first byte",
            ["model", "pull"],
            buckets=_LATENCY_S,
            registry=r,
        )
        self.ttft_error = Histogram(
            f"{ns}_ttft_error_ratio",
            "Predicted time to first token as a multiple of what it then took, both from the placement on",
            ["pull"],
            buckets=_PREDICTED_TO_ACTUAL,
            registry=r,
        )
        self.duration = Histogram(
            f"{ns}_request_duration_seconds",
            "From arrival to the answer's end",
            ["model"],
            buckets=_LATENCY_S,
            registry=r,
        )
        self.between_tokens = Histogram(
            f"{ns}_inter_token_seconds",
            "Mean time between two tokens of a streamed answer, from its first byte to its last",
            ["model"],
            buckets=_BETWEEN_TOKENS_S,
            registry=r,
        )
        self.pod_ttft = Summary(
            f"{ns}_pod_ttft_seconds",
            "From a request's placement on the pod to the answer's first byte",
            ["pod"],
            registry=r,
        )
        self.pull_seconds = Summary(
            f"{ns}_pull_seconds",
            "From the placement to the first byte of answers whose pod was to pull from this source",
            ["source"],
            registry=r,
        )
        self.model_tokens = Counter(
            f"{ns}_tokens",
            "Tokens as pods reported them: of prompts, those of them that were cached, of answers",
            ["model", "kind"],
            registry=r,
        )

    def _of_placement(self, ns: str) -> None:
        r = self.registry
        self.decision = Histogram(
            f"{ns}_decision_seconds", "Match, placement and source choice", buckets=_DECISION_S, registry=r
        )
        self.stages = Histogram(
            f"{ns}_decision_stage_seconds",
            "The same, each by itself; tokenization before it has its own metric",
            ["stage"],
            buckets=_DECISION_S,
            registry=r,
        )
        self.scores = Counter(
            f"{ns}_placement_score",
            "What scorers gave to the candidates that were chosen, times their weights",
            ["scorer"],
            registry=r,
        )
        self._match, self._place, self._source = map(self.stages.labels, ("match", "place", "source"))
        self.tokenized = Counter(
            f"{ns}_prompts", "Prompts by where their token ids came from", ["tokens_from", "reason"], registry=r
        )
        self.tokenization = Histogram(
            f"{ns}_tokenization_seconds",
            "From a prompt to its token ids",
            ["tokens_from"],
            buckets=_TOKENIZATION_S,
            registry=r,
        )
        self.reused_tokens = Counter(
            f"{ns}_reused_tokens", "Prompt tokens that came out of memory", ["tokens_from"], registry=r
        )
        self.token_mismatches = Counter(
            f"{ns}_token_mismatches",
            "Answers whose count of prompt tokens differs from what this gateway made",
            ["model", "tokens_from"],
            registry=r,
        )
        self.rendered_once = Counter(
            f"{ns}_rendered_once", "Attempts that brought their pod the prompt's token ids", ["pod"], registry=r
        )

    def _of_predictions(self, ns: str) -> None:
        r = self.registry
        self.prompt_tokens = Counter(
            f"{ns}_prompt_tokens", "Prompt tokens of requests with known ids", ["pod"], registry=r
        )
        self.completion_tokens = Counter(
            f"{ns}_completion_tokens", "Completion tokens as pods reported them", ["pod"], registry=r
        )
        self.predicted = Counter(
            f"{ns}_predicted_cached_tokens",
            "Cached tokens this gateway predicted, of answers that also reported them",
            ["pod"],
            registry=r,
        )
        self.reported = Counter(
            f"{ns}_reported_cached_tokens",
            "Cached tokens pods reported, of answers with a prediction",
            ["pod"],
            registry=r,
        )
        self.mispredicted = Counter(
            f"{ns}_mispredicted_requests",
            "Answers whose reported cached tokens differ from the prediction",
            ["pod", "direction"],
            registry=r,
        )
        self.audits = Counter(
            f"{ns}_audits",
            "Spans of requests whose prediction was held against the pod's counters, by result",
            ["pod", "result"],
            registry=r,
        )
        self.filters_skipped = Counter(
            f"{ns}_filters_skipped", "Placements for which a filter would have left no pod", ["filter"], registry=r
        )
        self.scorer_faults = Counter(
            f"{ns}_scorer_faults", "Placements for which a scorer failed and counted as neutral", ["scorer"], registry=r
        )
        self.pulls = Counter(f"{ns}_pulls", "Source choice by outcome", ["outcome"], registry=r)
        self.joined_pulls = Counter(
            f"{ns}_joined_pulls", "Named sources of requests that wait for another one's pull", ["source"], registry=r
        )
        self.pulled_tokens = Counter(f"{ns}_pulled_tokens", "Tokens that a named source led by", ["source"], registry=r)

    def _of_refusals(self, ns: str) -> None:
        r = self.registry
        self.key_requests = Counter(
            f"{ns}_key_requests", "Requests by API key and answer", ["key", "status"], registry=r
        )
        self.refused = Counter(f"{ns}_refused", "What this gateway refused, by reason", ["reason"], registry=r)
        self.admission_waited = Histogram(
            f"{ns}_admission_waited_seconds",
            "How long requests waited that were held back and then let go",
            buckets=_LATENCY_S,
            registry=r,
        )
        self.admission_rejected = Counter(
            f"{ns}_admission_rejected",
            "Requests that could not wait, or not until pods took them",
            ["reason"],
            registry=r,
        )
        self.reloads = Counter(
            f"{ns}_file_reloads", "Changed files that were read again, by result", ["file", "result"], registry=r
        )
        self.retries = Counter(f"{ns}_retries", "Attempts that went to another pod", ["reason"], registry=r)
        self.watchdog_fired = Counter(
            f"{ns}_watchdog_fired",
            "Requests whose pull was late, by who pulled from whom",
            ["pod", "source"],
            registry=r,
            most=MOST_OF_PAIRS,
        )
        self.watchdog_refused = Counter(
            f"{ns}_watchdog_refused", "Late pulls that were waited for all the same", ["reason"], registry=r
        )
        self.detours = Counter(
            f"{ns}_detours",
            "Requests that would have waited for blocks of a pull that was given up, by the way around them",
            ["way"],
            registry=r,
        )
        self.pull_failures = Counter(
            f"{ns}_pull_failures",
            "Pulls that failed, of requests and of trials",
            ["pod", "source", "reason"],
            registry=r,
            most=MOST_OF_PAIRS,
        )
        self.retries_refused = Counter(
            f"{ns}_retries_refused", "Failed attempts after which no other pod was asked", ["reason"], registry=r
        )

    def _of_pods(self, ns: str) -> None:
        r = self.registry
        self.engine_errors = Counter(
            f"{ns}_engine_errors",
            "Answers with status 200 that were an engine's failure",
            ["pod", "reason"],
            registry=r,
        )
        self.broken = Counter(
            f"{ns}_broken_answers", "Answers that broke after their first byte", ["pod", "reason"], registry=r
        )
        self.events = Counter(
            f"{ns}_kv_events", "KV-cache event batches by what became of them", ["pod", "outcome"], registry=r
        )
        self.event_effects = Counter(
            f"{ns}_kv_event_effects", "Blocks and events by effect on the index", ["pod", "effect"], registry=r
        )
        self.replays = Counter(f"{ns}_kv_replays", "Replays of missed events by result", ["pod", "result"], registry=r)
        self.polls = Counter(f"{ns}_polls", "Polls of pods by result", ["pod", "result"], registry=r)
        self.task_failures = Counter(
            f"{ns}_task_failures", "Background tasks that failed unexpectedly and were restarted", ["pod"], registry=r
        )

    def _of_itself(self, ns: str) -> None:
        r = self.registry
        self.restores = Counter(
            f"{ns}_restores", "Starts from a snapshot of the index, by result", ["result"], registry=r
        )
        self.port_probes = Counter(
            f"{ns}_port_probes", "Looks whether a pod listens where it serves pulls", ["pod", "result"], registry=r
        )
        self.pull_trials = Counter(
            f"{ns}_pull_trials", "Trials of pulls between two pods, by result", ["result"], registry=r
        )
        self.identities = Counter(
            f"{ns}_identities",
            "Questions what a pod has to have in common with its peers",
            ["pod", "result"],
            registry=r,
        )
        self.probes = Counter(
            f"{ns}_probes",
            "Probes of new pods for agreement with their peers, by result",
            ["pod", "result"],
            registry=r,
        )
        self.costs_file = Counter(
            f"{ns}_costs_file",
            "Reads and writes of the file in costs.path, by result",
            ["action", "result"],
            registry=r,
        )
        self.config_reloads = Counter(
            f"{ns}_config_reloads", "SIGHUPs, by what became of the configuration", ["result"], registry=r
        )
        self.config_loaded = Gauge(
            f"{ns}_config_loaded_timestamp_seconds", "When the configuration in force was read", registry=r
        )
        self.loop_lag = Histogram(
            f"{ns}_event_loop_lag_seconds",
            "How late the event loop is for a timer, asked several times a second",
            buckets=_LAG_S,
            registry=r,
        )
        self.viewers_dropped = Counter(
            f"{ns}_dropped_viewers", "Viewers of the live page that did not take what it sent them", registry=r
        )
        self.access_log_dropped = LockedCounter(  # counts in a thread as well
            f"{ns}_access_log_dropped_lines", "Requests whose line could not be written", registry=r
        )
        self.decision_log_dropped = LockedCounter(
            f"{ns}_decision_log_dropped_lines", "Decisions whose line could not be written", registry=r
        )
        self.explain_failures = Counter(
            f"{ns}_explain_header_failures", "Answers without the x-gateway-explain that was asked for", registry=r
        )

    def _begin_at_zero(self) -> None:
        """Where all values are known: the first of a series that begins with it is seen by no rate."""
        for counter, values in (
            (self.pulls, ("named", "self", "below-floor", "no-holder", "cost", "disabled", "batch", "endpoint")),
            (self.pulls, ("breaker", "differ", "late")),
            (self.watchdog_refused, ("budget",)),
            (self.detours, ("salt", "other_pod")),
            (self.pull_trials, ("ok", "late", "nothing", "unclear", "impossible")),
            (self.refused, ("no_key", "unknown_key", "not_admin", "model", "key_limit", "global_limit", "pod_limit")),
            (self.refused, ("header_timeout", "header_too_large", "bad_head")),
            (self.retries_refused, ("no_pod", "attempts", "budget", "body")),
            (self.admission_rejected, ("queue_full", "timeout", "displaced")),
            (self.config_reloads, ("ok", "restart_needed", "failed", "nothing_to_reload")),
        ):
            for value in values:
                counter.labels(value)
        for pull in ("named", "none"):
            self.ttft_error.labels(pull)
        for file in ("keys", "pod_key", "tls"):
            for result in ("ok", "failed"):
                self.reloads.labels(file, result)
