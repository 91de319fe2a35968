from engine_patch.pull_counts import COUNTERS, GAUGES, OTHER, PULL_BYTES, PULLS, TIMEOUTS, PullCounts


def test_what_was_counted_is_taken_once() -> None:
    counts = PullCounts()
    counts.add(PULLS, "a")
    counts.add(PULL_BYTES, "a", value=10)
    counts.add(PULL_BYTES, "a", value=5)
    assert list(counts.take()) == [(PULLS, ("a",), 1), (PULL_BYTES, ("a",), 15)]
    assert list(counts.take()) == []


def test_peers_beyond_a_number_share_one_series() -> None:
    counts = PullCounts()
    for number in range(1000):
        counts.add(TIMEOUTS, f"peer {number}", "lookup")
    taken = {labels: value for _, labels, value in counts.take()}
    assert len(taken) == 257
    assert taken[OTHER, "lookup"] == 744
    counts.add(TIMEOUTS, "peer 0", "fetch")
    assert list(counts.take()) == [(TIMEOUTS, ("peer 0", "fetch"), 1)]


def test_every_metric_is_described() -> None:
    for documentation, labels in COUNTERS.values():
        assert documentation.endswith(".")
        assert labels in ((), ("peer",), ("peer", "phase"))
    assert not COUNTERS.keys() & GAUGES.keys()
