from prometheus_client import CollectorRegistry, generate_latest

from gateway.labelled import Counter, Histogram


def test_a_series_is_the_same_however_often_it_is_asked_for() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Things seen", ["kind", "status"], registry=registry)
    counter.labels("a", 200).inc()
    counter.labels("a", 200).inc(2)
    counter.labels("b", 200).inc()
    text = generate_latest(registry).decode()
    assert 'seen_total{kind="a",status="200"} 3.0' in text
    assert 'seen_total{kind="b",status="200"} 1.0' in text
    assert counter.labels("a", 200) is counter.labels("a", 200)


def test_a_series_that_was_ended_begins_anew() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Things seen", ["kind"], registry=registry)
    counter.labels("a").inc(5)
    counter.remove("a")
    assert "seen_total{" not in generate_latest(registry).decode()
    counter.labels("a").inc()
    assert 'seen_total{kind="a"} 1.0' in generate_latest(registry).decode()


def test_a_histogram_has_its_buckets() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("took_seconds", "Time", ["kind"], buckets=(1.0, 2.0), registry=registry)
    histogram.labels("a").observe(1.5)
    histogram.labels("a").observe(0.5)
    text = generate_latest(registry).decode()
    assert 'took_seconds_bucket{kind="a",le="1.0"} 1.0' in text
    assert 'took_seconds_bucket{kind="a",le="+Inf"} 2.0' in text


def test_one_without_labels_counts_as_it_is() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Things seen", registry=registry)
    counter.inc(4)
    assert "seen_total 4.0" in generate_latest(registry).decode()


def test_of_too_many_series_it_is_still_told_what_happened_only_not_to_whom() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Things seen", ["pod", "status", "reason"], registry=registry, most=2)
    for pod in ("a", "b", "c", "d"):
        counter.labels(pod, 200, "").inc()
    for pod in ("a", "c"):
        counter.labels(pod, 502, "pod_timeout").inc()
    assert counter.labels("a", 200, "").value == 1
    assert counter.labels("other", 200, "").value == 2
    assert counter.labels("other", 502, "pod_timeout").value == 2


def test_what_is_kept_of_too_many_series_has_a_bound_as_well() -> None:
    counter = Counter("seen", "Things seen", ["pod", "status"], registry=CollectorRegistry(), most=3)
    for status in range(100):
        counter.labels("a", status).inc()
    assert len(counter._series) == 3 + 3 + 1
    assert counter.labels("other", "other").value == 100 - 3 - 3
    plain = Counter("kinds", "Kinds seen", ["kind"], registry=CollectorRegistry(), most=3)
    for kind in range(100):
        plain.labels(kind).inc()
    assert len(plain._series) == 3 + 1
    assert plain.labels("other").value == 97
