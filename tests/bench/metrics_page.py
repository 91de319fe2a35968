"""A gateway's metrics as they are after a while before a large fleet: every series that usually comes to be."""

from config.load import decode
from gateway.metrics import Metrics, Record
from gateway.pod import Model, Pod
from gateway.pods import PodTable
from index import Publisher, RadixIndex

_OF_EVENTS = ("applied", "gap", "duplicate")
_EFFECTS = ("stored_blocks", "removed_blocks", "unknown_removed", "orphaned")


def busy(*, pods: int, models: int) -> Metrics:
    """Metrics of a gateway each of whose pods has answered for each model, once well and once not."""
    urls = [f"http://10.0.{number // 250}.{number % 250 + 1}:8000" for number in range(pods)]
    config = decode({"pods": [{"url": url} for url in urls]}, source="bench")
    table = PodTable([Pod(spec, p2p=None, breaker=config.breaker) for spec in config.pods], max_load_age=10.0)
    served = {
        name: Model(name, "base") for name in (f"organisation/a-model-of-{number}-billion" for number in range(models))
    }
    index = RadixIndex()
    metrics = Metrics(table, index)
    for pod in table:
        pod.joined(served, (0,))
        pod.streams[0].last_event_at = 1.0
        index.add_publisher(Publisher(pod.name, 0), "base")
        for model in served:
            metrics.completed(answered(model, pod.name, 200), 2.0)
            metrics.completed(answered(model, pod.name, 502, reason="pod_disconnected"), 2.0)
        _watched(metrics, pod.name)
    return metrics


def answered(model: str, pod: str, status: int, *, reason: str = "") -> Record:
    """A request that ended, with everything known of it."""
    return Record(
        started=0.0,
        endpoint="/v1/chat/completions",
        model=model,
        pod=pod,
        status=status,
        first_byte=0.5,
        placed=0.1,
        predicted_ttft=0.3,
        source=pod,
        prompt_tokens=2048,
        predicted_cached=1024,
        reported_prompt=2048,
        reported_cached=1008,
        reported_completion=64,
        streamed=True,
        trace="4bf92f3577b34da6a3ce929d0e0e4736",
        reason=reason,
    )


def _watched(metrics: Metrics, pod: str) -> None:
    for outcome in _OF_EVENTS:
        metrics.events.labels(pod, outcome).inc()
    for effect in _EFFECTS:
        metrics.event_effects.labels(pod, effect).inc()
    for counter in (metrics.polls, metrics.replays, metrics.probes, metrics.audits):
        counter.labels(pod, "ok").inc()
    metrics.rendered_once.labels(pod).inc()
    metrics.pulled_tokens.labels(pod).inc()
