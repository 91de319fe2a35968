"""Runs of the client in tests: a load, an endpoint, and the records that came of it."""

from collections.abc import Callable
from typing import Any

from loadgen.client.load import Load
from loadgen.client.pool import Endpoint, Pool
from loadgen.client.request import Composer, Shape, Texts
from loadgen.client.runner import Limits, Runner
from loadgen.report.record import Record

SMALL = {"input_tokens": 20, "output_tokens": 5}


async def records(
    url: str,
    load: Load,
    *,
    limits: Limits | None = None,
    during: Callable[[Runner, Record], None] | None = None,
    **shape: Any,
) -> list[Record]:
    """Run a load; `during` is told of each record, and may interrupt."""
    found: list[Record] = []

    def done(record: Record) -> None:
        found.append(record)
        if during is not None:
            during(runner, record)

    endpoint = Endpoint.parse(url)
    async with Pool(endpoint) as pool:
        composer = Composer(
            Shape(model=shape.pop("model", "demo-model"), **shape),
            Texts.of(range(1000, 2000)),
            base=endpoint.base,
            authority=endpoint.authority,
            run="run",
        )
        schedule = load.schedule(composer.watched(load.read(0)))
        runner = Runner(pool, composer, schedule, limits or Limits(timeout_s=20.0), done)
        await runner.run()
    return found
