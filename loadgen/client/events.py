"""A streamed answer's server-sent events: counted, hardly read.

A load generator wants to know when an answer's tokens came, and what its last words were. So events are decoded up to
the first one with a token. From there on an event is its end, an empty line, which cannot occur inside of one: JSON has
no raw line ends. The last few are kept as bytes and decoded when the stream is over: usage, errors and the end marker
are there, and they are no tokens. One event counts as one token until the usage says better.

A chat's first event may do no more than announce a role, long before there is a token; it is not the first token.
"""

from collections import deque
from typing import Any, Final, NamedTuple

import msgspec

from loadgen.client.failures import Disconnected, Failure, Unreadable

_END: Final = b"\n\n"
_LAST: Final = 6  # events: finish reason, usage, error and end marker, and what servers add of their own
_LONGEST_EVENT_BYTES: Final = 4 << 20  # ids of a long prompt may come with the first one
_TOLD_BYTES: Final = 200  # of what cannot be read
_BROKEN_OFF: Final = frozenset({"abort", "error"})  # reasons why an engine finished that are no end of an answer


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None

    @property
    def says(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def has_token(self) -> bool:
        return self.text is not None or self.finish_reason is not None or (self.delta is not None and self.delta.says)

    @property
    def said(self) -> str:
        return self.text or (self.delta.content if self.delta else None) or ""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """What an answer cost, as the endpoint counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """None: not told."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class Real(NamedTuple):
    """What an answer really said: its text, and its ids where they came with it."""

    text: str
    token_ids: list[int]


_decode = msgspec.json.Decoder(_Chunk).decode


class Events:
    """Takes the stream's pieces as they arrive; `times` has the arrival of each token. `keep`: for `real()`."""

    __slots__ = ("_done", "_finish_reason", "_kept", "_last", "_rest", "_sealed", "times", "usage")

    def __init__(self, *, keep: bool = False) -> None:
        self.times: list[float] = []
        self.usage: Usage | None = None
        self._last: deque[bytes] = deque(maxlen=_LAST)
        self._kept: list[bytes] | None = [] if keep else None
        self._rest = b""
        self._done = False
        self._sealed = False
        self._finish_reason: str | None = None

    def feed(self, piece: bytes, at: float) -> None:
        """Take what arrived then; raises Unreadable. O(piece), and no more than one pass over it for one event."""
        if self._kept is not None:
            self._kept.append(piece)
        if (
            self.times
            and not self._rest
            and piece.startswith(b"data:")
            and piece.endswith(_END)
            and piece.count(_END) == 1
        ):
            self.times.append(at)
            self._last.append(piece)
        else:
            self._split(piece, at)

    def _split(self, piece: bytes, at: float) -> None:
        data = self._rest + piece
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *whole, self._rest = data.split(_END)
        if len(self._rest) > _LONGEST_EVENT_BYTES:
            raise Unreadable(f"an event of more than {_LONGEST_EVENT_BYTES} bytes")
        for event in whole:
            if _payload(event) is None:  # a comment, which keeps connections alive
                continue
            self._last.append(event)
            if self.times or self._is_first(event):
                self.times.append(at)

    def _is_first(self, event: bytes) -> bool:
        chunk = _read(event)
        return chunk is not None and any(choice.has_token for choice in chunk.choices or ())

    def seal(self) -> None:
        """Read the last events: `usage` is set, `times` keeps tokens only. Idempotent.

        Raises Failure: Unreadable, or where the stream has an error or no end marker.
        """
        if self._sealed:
            return
        self._sealed = True
        error: Any = None
        while self._last:
            chunk = _read(self._last.pop())
            if chunk is not None and chunk.choices:
                self._finish_reason = chunk.choices[0].finish_reason
                self.usage = self.usage or chunk.usage
                break
            if self.times:
                self.times.pop()
            if chunk is None:
                self._done = True
            else:
                self.usage, error = self.usage or chunk.usage, error or chunk.error
        if self.usage is not None and len(self.times) > max(self.usage.completion_tokens, 1):
            self.times.pop()  # some servers tell the reason for the end in an event of its own, which is no token
        self._judge(error)

    def _judge(self, error: object) -> None:
        if error is not None:
            raise Failure("error_event", message_of(error))
        if self._finish_reason in _BROKEN_OFF:
            raise Failure("aborted", f"the engine finished with {self._finish_reason!r}")
        if not self._done:
            raise Disconnected("the stream ended without its end marker")

    def real(self) -> Real:
        """Return what was said; needs `keep`. O(stream): every event is decoded."""
        text: list[str] = []
        token_ids: list[int] = []
        for event in b"".join(self._kept or ()).replace(b"\r\n", b"\n").split(_END):
            chunk = _read(event) if _payload(event) is not None else None
            for choice in (chunk.choices or ())[:1] if chunk else ():
                text.append(choice.said)
                token_ids += choice.token_ids or ()
        return Real("".join(text), token_ids)


def _payload(event: bytes) -> bytes | None:
    """What an event carries; None: nothing, it is a comment. Of several lines of data the first: vLLM has no more."""
    begin = 0
    if not event.startswith(b"data:"):
        begin = event.find(b"\ndata:") + 1
        if not begin:
            return None
    end = event.find(b"\n", begin)
    return event[begin + 5 : end if end >= 0 else None].strip()


def _read(event: bytes) -> _Chunk | None:
    """An event's chunk; None: it is the end marker."""
    payload = _payload(event) or b""
    if payload == b"[DONE]":
        return None
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        raise Unreadable(f"an event that is no chunk, {error}: {payload[:_TOLD_BYTES]!r}") from error


def message_of(error: object) -> str:
    """Return what an OpenAI error says, in whatever form it comes."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)
