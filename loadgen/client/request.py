"""From a request of a load to what is sent for it.

A prompt's pieces are prefixes of endless texts, so the same piece is the same text in every request, and what prompts
share they share on the wire. Ids keep a prompt's length exact with every model; text is what people's clients send,
and the endpoint's tokenizer makes of it as many tokens as it will. A piece that stands for an answer is the answer's
real text where `history` is "real" and there was one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec

from loadgen.client.events import Real
from loadgen.workload import Piece, Request
from loadgen.workload.text import PieceCache, ids, words

Api: TypeAlias = Literal["completions", "chat"]
Prompts: TypeAlias = Literal["ids", "text"]
History: TypeAlias = Literal["synthetic", "real"]

_PATHS: Final[dict[Api, str]] = {"completions": "/completions", "chat": "/chat/completions"}
_UNFIT: Final = re.compile(r"[^\x21-\x7e]")  # for a header's value
_encode = msgspec.json.Encoder().encode


class Texts(NamedTuple):
    """Makes pieces concrete, from a seed and a number of tokens: as text, and as ids in JSON, without the brackets.

    Ids are encoded once and then joined: of a prompt of 100,000 tokens, most of which were sent before, as a list they
    would take milliseconds.
    """

    text: Callable[[int, int], str]
    ids: Callable[[int, int], bytes]

    @classmethod
    def of(cls, vocabulary: range) -> Self:
        """Common words; ids of `vocabulary`. What was made last is kept."""
        return cls(PieceCache(words), PieceCache(lambda seed, tokens: _listed(ids(seed, tokens, vocabulary))))


def _listed(token_ids: Sequence[int]) -> bytes:
    return _encode(token_ids)[1:-1]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are sent. `ignore_eos` has engines that know it answer at full length; `extra` is put into bodies,
    `headers` into heads. ValueError for a header that would not stay one.
    """

    model: str
    api: Api = "completions"
    prompts: Prompts = "ids"
    history: History = "synthetic"
    ignore_eos: bool = True
    extra: dict[str, Any] = {}
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse headers of several lines."""
        for name, value in self.headers.items():
            if not name or any(mark in name + value for mark in "\r\n\0") or ":" in name:
                raise ValueError(f"{name!r}: {value!r} is no header")


class Composer:
    """Makes bodies and heads of a load's requests, each once, a request's before those with its answer in them.

    `base` is the endpoint's path, `authority` its Host; request ids begin with `run`.
    """

    def __init__(self, shape: Shape, texts: Texts, *, base: str, authority: str, run: str) -> None:
        self._shape = shape
        self._texts = texts
        self._run = run
        self._answers: dict[int, Real | None] = {}  # None: it ended without one
        self._wanted: Counter[int] = Counter()  # pieces that stand for an answer and have not been composed
        fixed = {"Host": authority, "Content-Type": "application/json", "Accept": "text/event-stream", **shape.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._head = f"POST {base}{_PATHS[shape.api]} HTTP/1.1\r\n{lines}"

    def watched(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Pass on a load as it is read, and know by it whose answers will be asked for."""
        if self._shape.history == "synthetic":
            return iter(requests)
        return map(self._watch, requests)

    def _watch(self, request: Request) -> Request:
        self._wanted.update(piece.answer_of for piece in request.prompt if piece.answer_of is not None)
        return request

    def wants_answer(self, request: Request) -> bool:
        """Whether the real answer to a request will be asked for."""
        return request.number in self._wanted

    def waits(self, request: Request) -> bool:
        """Whether a request cannot be composed before others have ended."""
        if not self._wanted:
            return False
        return any(piece.answer_of in self._wanted and piece.answer_of not in self._answers for piece in request.prompt)

    def answered(self, request: Request, real: Real | None) -> None:
        """Know what was answered, None: nothing; the prompts go on with the load's own text."""
        if self.wants_answer(request):
            self._answers[request.number] = real

    def request_id(self, request: Request) -> str:
        """The id under which logs have the request."""
        return f"{self._run}-{request.number}"

    def head(self, request: Request, length: int) -> bytes:
        """The head of a request whose body has so many bytes."""
        names = f"X-Request-ID: {self.request_id(request)}\r\nX-Correlation-ID: {_UNFIT.sub('_', request.session)}\r\n"
        return f"{self._head}{names}Content-Length: {length}\r\n\r\n".encode("latin-1", "replace")

    def body(self, request: Request) -> bytes:
        """The body of a request. O(prompt)."""
        shape = self._shape
        fields: dict[str, Any] = {"model": shape.model}
        if shape.api == "chat":
            fields["messages"] = self._messages(request.prompt)
        elif shape.prompts == "text":
            fields["prompt"] = "".join(map(self._text, request.prompt))
        else:
            fields["prompt"] = msgspec.Raw(b"[%b]" % b",".join(filter(None, map(self._ids, request.prompt))))
            if request.number in self._wanted:
                fields["return_token_ids"] = True
        fields |= {"max_tokens": request.output_tokens, "stream": True, "stream_options": {"include_usage": True}}
        if shape.ignore_eos:
            fields["ignore_eos"] = True
        body = _encode(fields | shape.extra)
        self._release(request.prompt)
        return body

    def _messages(self, prompt: Iterable[Piece]) -> list[dict[str, str]]:
        return [
            {"role": role, "content": "".join(map(self._text, pieces))}
            for role, pieces in groupby(prompt, key=lambda piece: piece.role)
        ]

    def _text(self, piece: Piece) -> str:
        real = None if piece.answer_of is None else self._answers.get(piece.answer_of)
        return real.text if real and real.text else self._texts.text(piece.seed, piece.tokens)

    def _ids(self, piece: Piece) -> bytes:
        real = None if piece.answer_of is None else self._answers.get(piece.answer_of)
        return _listed(real.token_ids) if real and real.token_ids else self._texts.ids(piece.seed, piece.tokens)

    def _release(self, prompt: Iterable[Piece]) -> None:
        """Forget answers that no other prompt has."""
        for _, _, _, number in prompt if self._wanted else ():
            if number is not None and number in self._wanted:
                self._wanted[number] -= 1
                if not self._wanted[number]:
                    del self._wanted[number]
                    self._answers.pop(number, None)
