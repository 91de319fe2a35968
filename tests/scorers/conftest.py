import pytest
from hypothesis import strategies as st

from scorers import Candidate, PlacementRequest

tokens = st.integers(0, 10_000)
loads = st.none() | st.integers(0, 500)

candidates = st.builds(
    Candidate,
    pod=st.sampled_from([f"http://10.0.0.{host}:8000" for host in range(1, 9)]),
    rank=st.integers(0, 7),
    p2p_host=st.none() | st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
    p2p_port=st.none() | st.integers(5710, 5717),
    gpu_tokens=tokens,
    cpu_tokens=tokens,
    any_tokens=tokens,
    speculative_tokens=tokens,
    tiered=st.booleans(),
    waiting=loads,
    running=loads,
    kv_usage=st.none() | st.floats(0, 1),
    in_flight_requests=st.integers(0, 500),
    in_flight_tokens=tokens,
    role=st.sampled_from(["both", "prefill", "decode"]),
    labels=st.dictionaries(st.sampled_from(["zone", "gpu"]), st.sampled_from(["a", "b", "c"])),
    session=st.booleans(),
    cold_turn=st.integers(0, 20),
    adapter=st.sampled_from(["loaded", "slot", "waiting", "full", None]),
    expected_ttft=st.none() | st.floats(0, 100),
)
requests = st.builds(
    PlacementRequest,
    request_id=st.text(max_size=20),
    prompt_tokens=st.none() | tokens,
    block_size=st.sampled_from([16, 32, 64]),
    model=st.none() | st.just("m"),
)

st.register_type_strategy(Candidate, candidates)
st.register_type_strategy(PlacementRequest, requests)


@pytest.fixture
def request_of_1000() -> PlacementRequest:
    return PlacementRequest(request_id="r", prompt_tokens=1000, block_size=16, model="m")
