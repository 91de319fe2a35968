"""``p2p-loadgen replay-decisions``: what a gateway decided, decided again, by its own rules or by others."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from config.load import ConfigError, load
from config.presets import PRESETS
from config.schema import Placement
from loadgen.report.table import aligned
from loadgen.sim.logged import Logged, Reader, Rules
from loadgen.sim.redecide import Choice, Redecided, logged_choice, missing, redecided

_DIFFERS: Final = 1
_WRONG_ARGUMENTS: Final = 3
_QUANTILES: Final = (0.5, 0.9, 0.99)


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


class Change(Struct, frozen=True):
    """A decision that comes out otherwise."""

    request_id: str
    attempt: int
    logged: Choice
    replayed: Choice
    logged_ttft_s: float | None
    replayed_ttft_s: float | None


class Side(Struct):
    """What came of decisions: by pod (and rank), why there was no source, and when first tokens were expected."""

    pods: Counter[str] = msgspec.field(default_factory=Counter)
    pulls: int = 0
    sources: Counter[str] = msgspec.field(default_factory=Counter)
    ttft_s: list[float] = msgspec.field(default_factory=list)

    def add(self, choice: Choice, predicted_s: float | None) -> None:
        """One more."""
        self.pods[f"{choice.pod} rank {choice.rank}" if choice.rank else choice.pod] += 1
        self.sources[choice.source_reason] += 1
        self.pulls += choice.source is not None
        if predicted_s is not None:
            self.ttft_s.append(predicted_s)

    def row(self) -> dict[str, Any]:
        """As plain data."""
        figures = {f"p{100 * q:.0f}_ms": _ms(float(np.quantile(self.ttft_s, q))) for q in _QUANTILES if self.ttft_s}
        mean = {"mean_ms": _ms(sum(self.ttft_s) / len(self.ttft_s))} if self.ttft_s else {}
        return {
            "pods": dict(sorted(self.pods.items())),
            "pulls": self.pulls,
            "source_reasons": dict(sorted(self.sources.items())),
            "predicted_ttft": {**mean, **figures},
        }


class Replay:
    """All decisions of a log, by other `rules`, made of those in force; None: by those, each by its own."""

    def __init__(self, rules: Callable[[Rules], Rules] | None) -> None:
        self.reader = Reader()
        self.logged, self.replayed = Side(), Side()
        self.same = self.other_pod = self.other_source = 0
        self.changes: list[Change] = []
        self.missing: frozenset[str] = frozenset()
        self._rules = rules

    @property
    def count(self) -> int:
        """How many there were."""
        return self.logged.pods.total()

    def run(self, lines: Iterable[bytes], *, keep: int) -> None:
        """Decide all of them, and keep the first changes. Raises ValueError for a log that cannot be replayed."""
        for logged in self.reader.read(lines):
            if self._rules is None:
                again = own = redecided(logged, logged.rules)
            else:
                rules = self._rules(logged.rules)
                again, own = redecided(logged, rules), redecided(logged, logged.rules)
                self.missing |= missing(logged, rules)
            self._add(logged, own, again, keep)

    def _add(self, logged: Logged, own: Redecided, again: Redecided, keep: int) -> None:
        before, after = logged_choice(logged), again.choice
        self.logged.add(before, own.predicted_s)
        self.replayed.add(after, again.predicted_s)
        same = again.same_as(logged) if self._rules is None else before == after
        self.same += same
        moved = (before.pod, before.rank) != (after.pod, after.rank)
        self.other_pod += moved
        self.other_source += not moved and (before.source, before.source_rank) != (after.source, after.source_rank)
        if not same and len(self.changes) < keep:
            line = logged.line
            seconds = own.predicted_s, again.predicted_s
            self.changes.append(Change(line.request_id, line.attempt, before, after, *seconds))

    def row(self) -> dict[str, Any]:
        """As plain data."""
        reader = self.reader
        return {
            "decisions": reader.decisions,
            "replayed": self.count,
            "without_table": reader.without_table,
            "without_start": reader.without_start,
            "beginning": reader.beginning,
            "unreadable_lines": reader.unreadable,
            "same": self.same,
            "other_pod": self.other_pod,
            "other_source": self.other_source,
            "columns_not_logged": sorted(self.missing),
            "as_logged": self.logged.row(),
            "as_replayed": self.replayed.row(),
            "changes": self.changes,
        }


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("replay-decisions", help="a gateway's decision log, decided again")
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="of decision_log, in the order of writing")
    rules = parser.add_mutually_exclusive_group()
    rules.add_argument("--config", type=Path, metavar="FILE", help="decide by a gateway's configuration")
    rules.add_argument("--preset", choices=sorted(PRESETS), help="decide by this placement, pulls as in force")
    parser.add_argument("--show", type=int, default=5, metavar="N", help="changed decisions to show (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures and all changed decisions")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        replay = Replay(_rules(arguments))
        replay.run(_lines(arguments.logs), keep=sys.maxsize if arguments.json else max(0, arguments.show))
    except (ConfigError, ValueError, OSError, TypeError) as error:
        print(f"p2p-loadgen: {' '.join(str(error).split())}", file=sys.stderr)
        return _WRONG_ARGUMENTS
    if not replay.count:
        print(f"p2p-loadgen: nothing to replay: {_left_out(replay.reader) or 'no decisions'}", file=sys.stderr)
        return _WRONG_ARGUMENTS
    print("\n".join(_told(replay, arguments)))
    try:
        if arguments.json is not None:
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(replay.row())))
    except OSError as error:
        print(f"p2p-loadgen: {error}", file=sys.stderr)
        return _WRONG_ARGUMENTS
    as_it_was = arguments.config is None and arguments.preset is None
    return _DIFFERS if as_it_was and replay.same < replay.count else 0


def _rules(arguments: argparse.Namespace) -> Callable[[Rules], Rules] | None:
    if arguments.preset is not None:
        return _Preset(Placement(preset=arguments.preset))
    if arguments.config is None:
        return None
    config = load(arguments.config)
    rules = Rules(config.placement, config.p2p)
    return lambda _: rules


class _Preset:
    """Rules with the scorers and the picker of a preset; filters and pulls stay those in force, which may change."""

    def __init__(self, preset: Placement) -> None:
        self._placement = replace(preset, preset=None)
        self._last: tuple[Rules, Rules] | None = None

    def __call__(self, in_force: Rules) -> Rules:
        if self._last is None or self._last[0] is not in_force:
            placement = replace(self._placement, filters=in_force.placement.filters)
            self._last = in_force, Rules(placement, in_force.p2p)
        return self._last[1]


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for file in files:
        with file.open("rb") as lines:
            yield from lines


def _told(replay: Replay, arguments: argparse.Namespace) -> Iterator[str]:
    yield f"{replay.count} decisions replayed" + (f"; {left}" if (left := _left_out(replay.reader)) else "")
    if arguments.config is None and arguments.preset is None:
        yield f"as logged, to the last bit: {replay.same} of {replay.count}"
    else:
        yield from _compared(replay, f"preset {arguments.preset}" if arguments.preset else str(arguments.config))
    for change in replay.changes[: max(0, arguments.show)]:
        yield f"  {change.request_id}, attempt {change.attempt}: {_shown(change.logged)} → {_shown(change.replayed)}"


def _compared(replay: Replay, rules: str) -> Iterator[str]:
    before, after = replay.logged.row(), replay.replayed.row()
    rows = [("", "as logged", rules)]
    for title, field in (("", "pods"), ("source: ", "source_reasons")):
        names = sorted(before[field].keys() | after[field].keys())
        rows += [(f"{title}{name}", str(before[field].get(name, 0)), str(after[field].get(name, 0))) for name in names]
    rows.append(("pulls", str(before["pulls"]), str(after["pulls"])))
    for name, value in before["predicted_ttft"].items():
        label = f"predicted TTFT, {name.removesuffix('_ms')}"
        rows.append((label, f"{value:,.1f} ms", f"{after['predicted_ttft'][name]:,.1f} ms"))
    yield from aligned(rows, left=1)
    yield f"on another pod: {replay.other_pod} of {replay.count}; from another source only: {replay.other_source}"
    if replay.missing:
        yield f"not in the log, since nothing read it: {', '.join(sorted(replay.missing))}; taken as unknown"
    yield "each by itself: load and caches are as they were in the log, not as these decisions would have left them"


def _left_out(reader: Reader) -> str:
    counts = (
        (reader.without_table, "without a table (decision_log.full_sample)"),
        (reader.without_start, "whose table goes on from a lost one"),
        (reader.beginning, "from before all costs were told"),
        (reader.unreadable, "unreadable lines"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _shown(choice: Choice) -> str:
    rank = f" rank {choice.rank}" if choice.rank else ""
    source = f" pulling from {choice.source}" if choice.source else f" ({choice.source_reason})"
    return f"{choice.pod}{rank}{source}"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
