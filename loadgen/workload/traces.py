"""Loads that were recorded, read from their files line by line.

Mooncake (JSON lines): requests with a hash id for each 512 tokens of their prompt; equal ids stand for equal content.
AIPerf (JSON lines): sessions of turns, each with the length and the hash ids of what it adds. Azure (CSV): times and
lengths alone.

A file is opened when its first request is asked for. A line that is broken raises ValueError with the file's name and
the line's number. Times count from the first request's. `speed` divides times and pauses; `limit` is a number of
requests; `duration_s` is in seconds of the load, thus after `speed`. Another `seed` puts other texts in the same
places.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, field

from loadgen.workload import Piece, Request
from loadgen.workload.arrivals import faster, within
from loadgen.workload.datasets.distributions import check_range
from loadgen.workload.datasets.session import Session
from loadgen.workload.seeds import text_seed

BLOCK_TOKENS: Final = 512
_MS: Final = 1e-3

_Line = TypeVar("_Line")
_Length = Annotated[int, Meta(ge=1)]
# An answer of no tokens, which no engine gives, is asked for as one of one token.
_Answer = Annotated[int, Meta(ge=0)]
_HashId = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Time = Annotated[float, Meta(ge=0)]


def mooncake(  # one argument per option
    path: Path,
    *,
    speed: float = 1.0,
    limit: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    block_tokens: int = BLOCK_TOKENS,
) -> Iterator[Request]:
    """Requests of a trace in Mooncake's form, each with a time and a session of its own.

    What a prompt repeats of an earlier answer has hash ids as well, so answers are no pieces of later prompts.
    """
    check_range(1, block_tokens=block_tokens)
    return _part(_requests(path, _json_lines(path), _Mooncake(block_tokens, seed)), speed, limit, duration_s)


def aiperf(  # one argument per option
    path: Path,
    *,
    speed: float = 1.0,
    limit: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    block_tokens: int = BLOCK_TOKENS,
) -> Iterator[Request]:
    """Sessions of a multi-turn trace in aiperf's form.

    A turn's prompt is all that was said before in its session, answers included, and what the turn adds. It waits for
    the turn before it, then for its delay. What was said in each session is kept: memory grows with the file's hash
    ids.
    """
    check_range(1, block_tokens=block_tokens)
    return _part(_requests(path, _json_lines(path), _AIPerf(block_tokens, seed)), speed, limit, duration_s)


def azure(
    path: Path, *, speed: float = 1.0, limit: int | None = None, duration_s: float | None = None, seed: int = 0
) -> Iterator[Request]:
    """Requests of a trace in the form of Azure's LLM inference traces, of which no prompt shares a beginning."""
    return _part(_requests(path, _csv_lines(path), _Azure(seed)), speed, limit, duration_s)


TRACES: Final[Mapping[str, Callable[..., Iterator[Request]]]] = {"mooncake": mooncake, "aiperf": aiperf, "azure": azure}


def trace(name: str, parameters: Mapping[str, Any]) -> Iterator[Request]:
    """The requests of a trace in the form of that name, with its reader's parameters as JSON or YAML has them.

    ValueError for a name or key that is unknown and for a value out of range, with the path of what is wrong.
    """
    if name not in TRACES:
        raise ValueError(f"no trace format {name!r}; there are {', '.join(TRACES)}")
    try:
        options = msgspec.convert(parameters, _Options if name == "azure" else _BlockOptions)
    except msgspec.ValidationError as error:
        raise ValueError(f"trace {name}: {error}") from None
    fields = msgspec.structs.asdict(options)
    return TRACES[name](Path(fields.pop("path")), **fields)


def format_of(path: Path) -> str:
    """Which kind of trace a file is, by its first line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline(1 << 16)
    if line.startswith("TIMESTAMP"):
        return "azure"
    return "aiperf" if '"session_id"' in line else "mooncake"


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    speed: float = 1.0
    limit: int | None = None
    duration_s: float | None = None
    seed: int = 0


class _BlockOptions(_Options):
    block_tokens: int = BLOCK_TOKENS


class _MooncakeRow(msgspec.Struct):
    timestamp: _Time
    input_length: _Length
    output_length: _Answer
    hash_ids: list[_HashId]


class _AIPerfRow(msgspec.Struct):
    session_id: str
    input_length: _Length
    output_length: _Answer
    hash_ids: list[_HashId]
    timestamp: _Time | None = None
    delay: _Time = 0.0


class _AzureRow(msgspec.Struct):
    time: datetime = field(name="TIMESTAMP")
    context: _Length = field(name="ContextTokens")
    generated: _Answer = field(name="GeneratedTokens")


class _Mooncake:
    """Makes a line's request."""

    def __init__(self, block_tokens: int, seed: int) -> None:
        self._block_tokens = block_tokens
        self._seed = seed
        self._since = _Since()
        self._decode = msgspec.json.Decoder(_MooncakeRow).decode

    def __call__(self, number: int, line: bytes) -> Request:
        row = self._decode(line)
        return Request(
            number=number,
            session=f"mooncake-{number}",
            prompt=_pieces(row.hash_ids, row.input_length, self._block_tokens, self._seed),
            output_tokens=max(1, row.output_length),
            at=self._since.start(row.timestamp * _MS),
        )


class _AIPerf:
    """Makes a line's request, knowing the sessions so far."""

    def __init__(self, block_tokens: int, seed: int) -> None:
        self._block_tokens = block_tokens
        self._seed = seed
        self._since = _Since()
        self._sessions: dict[str, Session] = {}
        self._decode = msgspec.json.Decoder(_AIPerfRow).decode

    def __call__(self, number: int, line: bytes) -> Request:
        row = self._decode(line)
        session = self._sessions.get(row.session_id)
        if begins := session is None:
            session = self._sessions[row.session_id] = Session(row.session_id)
            at = self._since.start((row.timestamp or 0.0) * _MS)
        else:
            at = 0.0 if row.timestamp is None else self._since.start(row.timestamp * _MS, ordered=False)
        return session.turn(
            number,
            _pieces(row.hash_ids, row.input_length, self._block_tokens, self._seed),
            max(1, row.output_length),
            at=at,
            pause=row.delay * _MS,
            phase="first" if begins else "next",
        )


class _Azure:
    """Makes a line's request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._since = _Since()

    def __call__(self, number: int, line: dict[str, str]) -> Request:
        row = msgspec.convert(line, _AzureRow, strict=False)
        return Request(
            number=number,
            session=f"azure-{number}",
            prompt=(Piece(text_seed("azure", number, self._seed), row.context),),
            output_tokens=max(1, row.generated),
            # The clock of those that name no zone must not be one that is put forward and back.
            at=self._since.start((row.time if row.time.tzinfo else row.time.replace(tzinfo=UTC)).timestamp()),
        )


class _Since:
    """Times of a file, counted from its first."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0

    def start(self, time: float, *, ordered: bool = True) -> float:
        """Seconds since the first time. Requests that wait for none come in order of their times, else ValueError."""
        if ordered:
            if time < self._last:
                raise ValueError("it is due before a line above it; sort the file by time")
            self._last = time
        if self._first is None:
            self._first = time
        return max(0.0, time - self._first)


def _pieces(hash_ids: list[int], tokens: int, block_tokens: int, seed: int) -> tuple[Piece, ...]:
    full, rest = divmod(tokens, block_tokens)
    if len(hash_ids) != full + bool(rest):
        raise ValueError(f"{len(hash_ids)} hash ids do not fit {tokens} tokens in blocks of {block_tokens}")
    pieces = [Piece(text_seed("block", hash_id, seed), block_tokens) for hash_id in hash_ids]
    if rest:
        pieces[-1] = pieces[-1]._replace(tokens=rest)
    return tuple(pieces)


def _json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from ((at, line) for at, line in enumerate(file, 1) if not line.isspace())


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    # What is no UTF-8 is no number either, and is reported as such with its line.
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        yield from ((rows.line_num, row) for row in rows)


def _requests(
    path: Path, lines: Iterator[tuple[int, _Line]], request: Callable[[int, _Line], Request]
) -> Iterator[Request]:
    for number, (at, line) in enumerate(lines):
        try:
            made = request(number, line)
        except ValueError as error:
            raise ValueError(f"{path}:{at}: {error}") from None
        yield made


def _part(requests: Iterator[Request], speed: float, limit: int | None, duration_s: float | None) -> Iterator[Request]:
    check_range(1, limit=limit)
    requests = faster(requests, speed)
    if duration_s is not None:
        requests = within(requests, duration_s)
    return islice(requests, limit)
