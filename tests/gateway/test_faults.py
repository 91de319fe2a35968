"""What a client sees when a pod fails, fault by fault: its answer, and the counter that moves.

The table in docs/operations.md is this one.
"""

import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.gateway.faults import FAULTS, Fault, closes_on_reuse
from tests.gateway.fleet import Front, serving
from tests.gateway.raw import GOOD, RawPod, answered, raw, sends

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


async def counted(front: Front, counter: str) -> float:
    """A counter as it is written in the documents."""
    name, _, labels = counter.removeprefix("p2p_gateway_").partition("{")
    return await front.metric(name, **dict(re.findall(r'(\w+)="([^"]*)"', labels)))


def counted_twice(fault: Fault) -> int:
    """How many requests reach their pod a second time."""
    return int(fault.act is closes_on_reuse)


async def started(stack: AsyncExitStack, fault: Fault, *others: RawPod) -> tuple[Front, RawPod]:
    """A gateway in front of a pod that is about to fail, and of others behind it."""
    act = fault.act or sends()
    bad = await stack.enter_async_context(raw(act, early=fault.early))
    sections = {"limits": fault.limits, "poll": {"interval": 60.0}, "breaker": {"failures": 100}}
    front = await stack.enter_async_context(serving([bad, *others], **sections))
    if fault.act is None:
        await bad.stop()
    return front, bad


@each_fault
async def test_the_only_pod_fails(fault: Fault) -> None:
    async with AsyncExitStack() as stack:
        front, bad = await started(stack, fault)
        seen = await fault.ask(front)
        assert seen.status == fault.status
        assert fault.check(seen), seen
        await front.idle()
        assert await counted(front, fault.counter) == 1
        assert await front.metric("retries_total") == 0
        asked = await front.metric("requests_total")
        assert await front.metric("completion_tokens_total") == (7 * asked if seen.body == GOOD else 0)
        assert bad.heard == (0 if fault.act is None else asked + counted_twice(fault))


@each_fault
async def test_another_pod_is_there(fault: Fault) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(raw(sends(answered(GOOD), goes_on=True)))
        front, bad = await started(stack, fault, other)
        seen = await fault.ask(front)
        await front.idle()
        if not fault.retried:
            assert (seen.status, other.heard) == (fault.status, 0)
            assert fault.check(seen), seen
            assert await front.metric("retries_total") == 0
        else:
            assert (seen.status, seen.body, seen.whole, other.heard) == (200, GOOD, True, 1)
            assert seen.headers["x-gateway-pod"] == other.url
            assert await front.metric("retries_total", reason=fault.retried) == await front.metric("retries_total") == 1
            assert await front.metric("retries_refused_total") == 0
            if fault.counter.startswith("p2p_gateway_engine"):
                assert await counted(front, fault.counter) == 1
        assert bad.heard <= await front.metric("requests_total") + counted_twice(fault)


def documented() -> dict[str, list[str]]:
    text = OPERATIONS.read_text(encoding="utf-8").partition("## What a client sees when a pod fails")[2]
    table = re.findall(r"^\| (.+) \|$", text.partition("\n## ")[0], re.MULTILINE)[1:]
    return {cells[0]: cells[1:] for cells in (row.split(" | ") for row in table)}


def test_the_operators_table_is_this_one() -> None:
    assert list(documented()) == [fault.name for fault in FAULTS]


@each_fault
def test_the_operators_table_says_what_happens(fault: Fault) -> None:
    client, counter, elsewhere = documented()[fault.name]
    assert client.startswith(f"{fault.status},")
    assert counter == f"`{fault.counter.removeprefix('p2p_gateway_')}`"
    assert elsewhere == (f"`{fault.retried}`" if fault.retried else "the same")
