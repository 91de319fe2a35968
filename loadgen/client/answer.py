"""An answer on its way in: what its connection notes of it."""

from typing import Final

import msgspec

from loadgen.client.events import Events, Real, message_of
from loadgen.client.failures import Failure

_LONGEST_BODY_BYTES: Final = 4 << 20  # of an answer that is no stream
_STREAM: Final = b"text/event-stream"
_OK: Final = 200
_TOLD: Final = 300  # characters of a refusal


class Answer:
    """`status` is 0 before there is one; `first_byte` is the arrival of the first byte of the body, 0.0 before.

    `ended`: the arrival of its end. A stream is in `events`, anything else in `body`. `connect_s`: what a new
    connection took, 0.0 for one that was there. `real` is set where `keep` is.
    """

    __slots__ = ("body", "connect_s", "ended", "events", "first_byte", "headers", "keep", "real", "status", "streamed")

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.real: Real | None = None
        self.status = 0
        self.headers: dict[bytes, bytes] = {}  # names in lower case
        self.streamed = False
        self.events = Events(keep=keep)
        self.body = bytearray()
        self.first_byte = 0.0
        self.connect_s = 0.0
        self.ended = 0.0

    def begin(self, status: int) -> None:
        """Know what follows the head, which is complete."""
        self.status = status
        self.streamed = status == _OK and self.headers.get(b"content-type", b"").startswith(_STREAM)

    def take(self, piece: bytes, at: float) -> None:
        """Take a piece of the body; raises Unreadable."""
        if not self.first_byte:
            self.first_byte = at
        if self.streamed:
            self.events.feed(piece, at)
        elif len(self.body) < _LONGEST_BODY_BYTES:
            self.body += piece

    def judge(self) -> None:
        """Return where the answer is a whole stream; raise Failure where it is something else."""
        if self.streamed:
            self.events.seal()
            if self.keep:
                self.real = self.events.real()
        elif self.status == _OK:
            raise Failure("no_stream", "an answer that is no event stream")
        else:
            raise Failure(f"status_{self.status}", self._refusal())

    def header(self, name: bytes) -> str | None:
        """Return a header's value, if it is there."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def _refusal(self) -> str:
        try:
            told = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return self.body[:_TOLD].decode(errors="replace")
        if isinstance(told, dict):
            told = told.get("error", told)
        return message_of(told)[:_TOLD]
