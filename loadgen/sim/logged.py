"""A gateway's decision log, read again: each decision with all that it was made of."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET, Struct

from config.load import path_and_reason
from config.out_of_tree import spelt_out
from config.schema import P2P, Placement
from gateway.decision_lines import VERSION, Line, PodNote, Start, Table
from scorers import Barred, Candidate, Costs, PlacementRequest


class Rules(Struct, frozen=True):
    """What decisions go by."""

    placement: Placement
    p2p: P2P


class Logged(Struct, frozen=True):
    """A decision as it was logged. `request` has the costs of that moment: to be used before the next one is read."""

    line: Line
    table: Table
    rules: Rules
    pods: dict[str, PodNote]
    request: PlacementRequest
    candidates: list[Candidate]


class _Event(Struct):
    event: str = ""


_EVENT = msgspec.json.Decoder(_Event)
_START = msgspec.json.Decoder(Start)
_LINE = msgspec.json.Decoder(Line)


class Reader:
    """Reads once. Lines of other logs may stand between, as on standard error; what is of use to nobody is counted.

    `decisions`: lines; `without_table`: those that had none; `without_start`: those whose table goes on from one that
    is not there; `beginning`: those from before all costs had been told; `unreadable`: lines that are no JSON, or not
    as this version writes them.
    """

    def __init__(self) -> None:
        self.decisions = self.without_table = self.without_start = self.beginning = self.unreadable = 0
        self._rules: Rules | None = None
        self._pods: dict[str, PodNote] = {}
        self._next = 0
        self._costs = Costs()
        self._barred: Barred | None = None

    def read(self, lines: Iterable[bytes]) -> Iterator[Logged]:
        """The decisions that can be made again. Raises ValueError for the log of another version, or of its scorers."""
        for line in lines:
            try:
                event = _EVENT.decode(line).event
                if event == "decision log":
                    self._start(_START.decode(line))
                elif event == "decision" and (logged := self._decision(_LINE.decode(line))) is not None:
                    yield logged
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.unreadable += 1

    def _start(self, start: Start) -> None:
        if start.version != VERSION:
            raise ValueError(f"the log is of version {start.version}; this program replays version {VERSION}")
        self._rules, self._pods, self._next = rules_of(start.placement, start.p2p), start.pods, 0

    def _decision(self, line: Line) -> Logged | None:
        self.decisions += 1
        table = line.table
        if table is UNSET:
            self.without_table += 1
            return None
        if table.costs.whole:
            self._costs, self._barred, self._next = Costs(), None, 0
        if self._rules is None or table.number != self._next:
            self.without_start += 1
            self._next = -1  # until there is a start again
            return None
        self._next += 1
        self._costs.become(table.costs)
        if table.barred is not UNSET:
            self._barred = table.barred
        if not table.costs.complete:
            self.beginning += 1
            return None
        request = msgspec.structs.replace(table.request, costs=self._costs, barred=self._barred)
        return Logged(line, table, self._rules, self._pods, request, table.rows())


def rules_of(placement: object, p2p: object) -> Rules:
    """Of sections as a log has them. Raises ValueError: a scorer of somebody's own is not here."""
    try:
        return msgspec.convert(spelt_out({"placement": placement, "p2p": p2p}), Rules)
    except msgspec.ValidationError as error:
        raise ValueError(f"what the log says of placement cannot be used: {path_and_reason(error)}") from error
