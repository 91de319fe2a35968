"""What is known of one request when it is over: a line of the per-request file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from loadgen.client.failures import UNFINISHED

_MS: Final = 1e3


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One request. `_s` are seconds since the load's start, `_ms` durations; what is not known is null.

    `ttft_ms` and `e2el_ms` begin when the request was due (`scheduled_s`), so that a client or a limit that holds
    requests back does not hide what their users would have waited; from `sent_s` they are `ttft_sent_ms` and
    `e2el_sent_ms`. Connecting (`connect_ms`, 0 on a connection that was there) is after `sent_s`. `first_byte_ms` is
    from `sent_s` to the body's first byte, `itl_ms` are the times between one event with tokens and the next one.

    `pod` and `source` are whom the gateway named. `cached_tokens` and `prompt_tokens` are the endpoint's; where it does
    not tell, the latter is the load's. `error` is null for a whole answer, else one word: refused, disconnected,
    timeout, unreadable, no_stream, error_event, aborted, status_N; unfinished where the load ended first.
    """

    number: int
    request_id: str
    session: str
    phase: str
    seed: int
    warm_up: bool
    scheduled_s: float
    sent_s: float
    ended_s: float
    status: int = 0
    error: str | None = None
    detail: str | None = None
    pod: str | None = None
    source: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    connect_ms: float = 0.0
    first_byte_ms: float | None = None
    ttft_ms: float | None = None
    itl_ms: list[float] = []

    @property
    def completed(self) -> bool:
        """A whole answer came."""
        return self.error is None

    @property
    def failed(self) -> bool:
        """None did, and the endpoint had its time."""
        return self.error is not None and self.error != UNFINISHED

    @property
    def schedule_delay_ms(self) -> float:
        """How late it was sent."""
        return (self.sent_s - self.scheduled_s) * _MS

    @property
    def e2el_ms(self) -> float:
        """From when it was due to its end."""
        return (self.ended_s - self.scheduled_s) * _MS

    @property
    def e2el_sent_ms(self) -> float:
        """From when it was sent to its end."""
        return (self.ended_s - self.sent_s) * _MS

    @property
    def ttft_sent_ms(self) -> float | None:
        """From when it was sent to its first token."""
        return None if self.ttft_ms is None else self.ttft_ms - self.schedule_delay_ms

    @property
    def tpot_ms(self) -> float | None:
        """Per output token after the first one, over the events; None for an answer of one."""
        return sum(self.itl_ms) / (self.output_tokens - 1) if self.itl_ms and self.output_tokens > 1 else None


_encode = msgspec.json.Encoder().encode


def line(record: Record) -> bytes:
    """The record as a line of JSON, with what follows from it, to the microsecond."""
    return _encode(_rounded(msgspec.to_builtins(record) | _derived(record))) + b"\n"


def _derived(record: Record) -> dict[str, float | None]:
    return {
        "schedule_delay_ms": record.schedule_delay_ms,
        "ttft_sent_ms": record.ttft_sent_ms,
        "tpot_ms": record.tpot_ms,
        "e2el_ms": record.e2el_ms,
        "e2el_sent_ms": record.e2el_sent_ms,
    }


def _rounded(fields: dict[str, object]) -> dict[str, object]:
    for name, value in fields.items():
        if isinstance(value, float):
            fields[name] = round(value, 3 if name.endswith("_ms") else 6)
        elif name == "itl_ms" and isinstance(value, list):
            fields[name] = [round(each, 3) for each in value]
    return fields


def read(path: Path) -> Iterator[Record]:
    """The records of a per-request file; ValueError names the line that is none."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                yield msgspec.json.decode(text, type=Record)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
