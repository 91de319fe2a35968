"""`p2p-loadgen run URL`: send a load to an OpenAI endpoint, and say what its users would have seen.

Exit code 0; 1 where no request completed; 3 where nothing could be sent; 130 after an interrupt, whose results are
valid for what was sent until then.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec
import uvloop
from msgspec.structs import replace

from loadgen.client.failures import Failure
from loadgen.client.models import first_model
from loadgen.client.pool import Pool
from loadgen.client.request import Composer, Texts
from loadgen.client.runner import Runner
from loadgen.report import record as records
from loadgen.report import table
from loadgen.report.progress import Progress
from loadgen.report.record import Record
from loadgen.report.summary import Figures, phase_rows
from loadgen.run_options import Options, add_to, parse

_INTERRUPTED: Final = 130
_UNUSABLE: Final = 3
_FAULTS: Final = (Failure, ValueError, OSError)  # the user's, or the endpoint's
# A collection takes a few milliseconds with so many new objects, which are a few hundred streams'. The oldest
# generation, which is all streams there are, is left alone for as long as a run is likely to take.
_GC_THRESHOLDS: Final = (5_000, 20, 1_000)


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("run", help="send a load to an OpenAI endpoint and measure")
    add_to(parser)
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    try:
        options = parse(arguments)
        _allow_many_connections()
        return uvloop.run(_run(options))
    except _FAULTS as error:
        return _unusable(error)
    except ExceptionGroup as group:  # what a load that is read on the way, or a full disk, raises in a task
        known, others = group.split(_FAULTS)
        if known is None or others is not None:
            raise
        return _unusable(_first(known))


def _unusable(error: Exception) -> int:
    print(f"p2p-loadgen run: {error}", file=sys.stderr)
    return _UNUSABLE


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _allow_many_connections() -> None:
    """Raise this process's limit of open files, of which each stream is one, as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(options: Options) -> int:
    rows: list[dict[str, Any]] = []
    interrupted = False
    async with Pool(options.endpoint, insecure=options.insecure) as pool:
        shape = options.shape
        if not shape.model:
            shape = replace(shape, model=await first_model(pool, options.endpoint, shape.headers))
            options = options._replace(shape=shape)
        with _records_file(options.records) as file:
            for seed in options.seeds:
                row, interrupted = await _one_seed(options, pool, seed, file)
                rows.append(row)
                _write(options.results, rows)
                table.show(f"{row['scenario']} {row['arm']} seed {seed}".replace("  ", " "), table.summary(row))
                if interrupted:
                    break
    if interrupted:
        return _INTERRUPTED
    return 0 if any(row["completed"] for row in rows) else 1


async def _one_seed(options: Options, pool: Pool, seed: int, file: BinaryIO | None) -> tuple[dict[str, Any], bool]:
    """Send the load of a seed; return its figures, and whether the user ended it."""
    figures, phases = Figures(options.objectives), dict[str, Figures]()
    composer = Composer(
        options.shape,
        Texts.of(options.vocabulary),
        base=options.endpoint.base,
        authority=options.endpoint.authority,
        run=uuid.uuid4().hex[:8],
    )

    def done(record: Record) -> None:
        progress.add(record)
        if file is not None:
            file.write(records.line(record))
        if not record.warm_up:
            figures.add(record)
            phases.setdefault(record.phase, Figures(options.objectives)).add(record)

    schedule = options.load.schedule(composer.watched(options.load.read(seed)))
    runner = Runner(pool, composer, schedule, options.limits, done, seed=seed)
    progress = _progress(options, runner)
    date = datetime.now(UTC)
    with _interrupts(runner.interrupt), _undisturbed():
        await _watched(runner, None if options.quiet else progress)
    row = _head(options, seed, date) | figures.row() | phase_rows(phases)
    return row | {"not_sent": runner.not_sent, "interrupted": runner.interrupted}, runner.interrupted


def _progress(options: Options, runner: Runner) -> Progress:
    limits = options.limits
    seconds = None if limits.duration_s is None else limits.warm_up_s + limits.duration_s
    return Progress(runner, requests=options.load.requests, seconds=seconds)


async def _watched(runner: Runner, progress: Progress | None) -> None:
    async with asyncio.TaskGroup() as tasks:
        shown = tasks.create_task(progress.show()) if progress is not None else None
        await runner.run()
        if shown is not None:
            shown.cancel()


@contextlib.contextmanager
def _interrupts(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have SIGINT and SIGTERM end the run instead of the process."""
    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the collector from what is here already, and let it come less often: its pauses would be measured."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _head(options: Options, seed: int, date: datetime) -> dict[str, Any]:
    load = options.load
    beside = options.records and options.results and os.path.relpath(options.records, options.results.parent)
    return {
        "scenario": options.scenario,
        "arm": options.label,
        "seed": seed,
        "date": date.isoformat(timespec="seconds"),
        "model": options.shape.model,
        "api": options.shape.api,
        "arrival": load.arrival,
        "request_rate": load.rate,
        "concurrency": load.concurrency,
        "requests_file": beside,
    }


@contextlib.contextmanager
def _records_file(path: Path | None) -> Iterator[BinaryIO | None]:
    if path is None:
        yield None
        return
    with path.open("wb") as file:
        yield file


def _write(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Replace the result file at once, so that there is a whole one at any time."""
    if path is not None:
        part = path.with_name(path.name + ".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
        part.replace(path)
