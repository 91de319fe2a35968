"""Clients that are not ours, in front of a gateway with simulated pods."""

from collections.abc import AsyncIterator

import pytest

from tests.gateway.conftest import log, pytest_asyncio_loop_factories
from tests.gateway.fleet import Front, fleet

__all__ = ["log", "pytest_asyncio_loop_factories"]


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with fleet(2) as (front, _):
        yield front
