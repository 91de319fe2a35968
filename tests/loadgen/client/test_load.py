from itertools import islice, pairwise
from pathlib import Path

import pytest

from loadgen.client.load import Load
from loadgen.client.schedule import ClosedLoop, OpenLoop
from loadgen.workload.traces import format_of

MOONCAKE = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [1, %d]}\n'
AIPERF = '{"session_id": "a", "input_length": 10, "output_length": 5, "hash_ids": [1], "timestamp": 0.0}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


def test_a_rate_gives_times_that_only_the_seed_decides() -> None:
    load = Load(arrival="poisson", rate=10.0, requests=200)
    times = [request.at for request in load.read(1)]
    assert times == [request.at for request in load.read(1)]
    assert times != [request.at for request in load.read(2)]
    assert times[-1] == pytest.approx(20.0, rel=0.3)
    assert isinstance(load.schedule(load.read(1)), OpenLoop)


def test_constant_and_gamma_arrivals() -> None:
    assert [r.at for r in Load(arrival="constant", rate=4.0, requests=3).read(0)] == [0.0, 0.25, 0.5]
    bursty = [r.at for r in Load(arrival="gamma", rate=4.0, burstiness=0.1, requests=400).read(0)]
    gaps = sorted(later - earlier for earlier, later in pairwise(bursty))
    assert gaps[len(gaps) // 2] < 0.05 < gaps[-1]


def test_a_closed_loop_has_no_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE % (0, 2) + MOONCAKE % (5000, 3))
    load = Load(arrival="closed", concurrency=2, trace=file)
    assert [request.at for request in load.read(0)] == [0.0, 0.0]
    assert isinstance(load.schedule(load.read(0)), ClosedLoop)


def test_a_trace_keeps_its_times_sped_up(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE % (1000, 2) + MOONCAKE % (5000, 3))
    assert [request.at for request in Load(trace=file, speed=2.0).read(0)] == [0.0, 2.0]
    assert Load(trace=file).name == "trace"


@pytest.mark.parametrize(("text", "kind"), [(MOONCAKE % (0, 1), "mooncake"), (AIPERF, "aiperf"), (AZURE, "azure")])
def test_a_traces_format_is_known_by_its_first_line(tmp_path: Path, text: str, kind: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    assert format_of(file) == kind
    assert len(list(Load(trace=file).read(0))) == 1


def test_a_dataset_has_its_parameters() -> None:
    load = Load(dataset="docqa", parameters={"conversations": 2, "document_tokens": 10, "turns": 3})
    assert len(list(load.read(0))) == 6
    assert load.name == "docqa"
    assert len(list(islice(Load(arrival="constant", rate=1.0).read(0), 100))) == 100  # endless


def test_without_times_a_load_needs_an_end() -> None:
    assert len(list(Load(requests=5).read(0))) == 5
    assert len(list(Load(parameters={"count": 5}).read(0))) == 5
    with pytest.raises(ValueError, match="neither times nor an end"):
        Load().read(0)


@pytest.mark.parametrize("wrong", [{"arrival": "closed"}, {"arrival": "poisson"}, {"burstiness": 0.0}])
def test_what_does_not_go_together_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="--"):
        Load(**wrong)  # type: ignore[arg-type]
