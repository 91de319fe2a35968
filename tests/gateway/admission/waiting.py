"""Waiters for tests."""

from gateway.admission.queue import FairQueue, Lane, Waiter

LANE, OTHER = Lane("model"), Lane("other")


def waiter(
    key: str = "a",
    *,
    priority: int = 0,
    share: float = 1.0,
    tokens: float = 100.0,
    arrived: float = 0.0,
    lane: Lane = LANE,
) -> Waiter:
    return Waiter(lane=lane, key=key, share=share, priority=priority, tokens=tokens, arrived=arrived)


def queue(bound: int = 100, timeout: float = 30.0) -> FairQueue[Waiter]:
    return FairQueue(bound=bound, timeout=timeout)


def popped(from_queue: FairQueue[Waiter], *lanes: Lane, most: int | None = None) -> list[Waiter]:
    """All that go, or the first so many, in their order; of every lane unless told of which."""
    order: list[Waiter] = []
    while len(order) != most and (next_one := from_queue.next(lanes or {LANE, OTHER})) is not None:
        from_queue.go(next_one)
        order.append(next_one)
    return order
