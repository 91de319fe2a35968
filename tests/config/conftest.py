import pytest

from scorers import PlacementRequest


@pytest.fixture
def request_of_1000() -> PlacementRequest:
    return PlacementRequest(request_id="r", prompt_tokens=1000, block_size=16, model="m")
