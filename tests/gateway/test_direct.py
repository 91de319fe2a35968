import pytest

from gateway.direct import Completed, Pulled, connection_refused
from gateway.pull_counters import Moved


@pytest.mark.parametrize(
    ("cached", "moved", "happened"),
    [
        (0, Moved(512.0, 4096.0, 0.1), False),  # other requests pulled meanwhile
        (64, Moved(0.0, 0.0, 0.0), False),  # of its own cache
        (64, Moved(64.0, 4096.0, 0.1), True),
        (None, Moved(None, 4096.0, None), True),
        (64, Moved(None, None, None), True),
        (None, Moved(None, None, None), False),
    ],
)
def test_a_pull_happened_if_the_answer_reused_something_and_the_pod_counted_it(
    cached: int | None, moved: Moved, happened: bool
) -> None:
    assert Pulled(Completed(0.1, 65, cached), moved).happened is happened


async def test_a_name_that_cannot_be_one_is_not_reached() -> None:
    assert await connection_refused(("a" * 64 + ".example", 5710)) == "no name of a host"
