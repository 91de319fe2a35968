"""What a publisher's own counters say of the predictions made for it, where its answers say nothing.

By default an engine's answers do not tell what they reused. Its counters do, for all requests together: prompt tokens,
and how many of them were cached. Both count a request by the time it gives its first token. So over a span of time in
which every request sent to the publisher also gave its first byte, the counters' growth is the sum over these requests,
if nobody else sent any. That is seen: the prompt tokens counted are then exactly those sent.

    sent ─▶ answered, or failed          requests, one by one
    ──┴──────poll─────────────poll──     a span ends at a poll during which nothing was under way towards its first byte

Each poll at which nothing waits for its first byte ends a span and begins the next; at any other the span goes on. A
span is judged whole: what was predicted for its requests against what was counted as cached.

What this cannot tell. A request that reused less than predicted is hidden by one of the same span that reused more. A
span counts as one comparison, however many requests it had. Where requests wait at every poll, or somebody else
uses the publisher, or what its requests reuse cannot be predicted (pulls, batches, unknown tokens), nothing is learnt.
Neither is it from a request that breaks off before its first byte, or that the engine refuses: it spoils its span
unless the engine agrees about what it has counted. A span with answers that told their reuse themselves is left out,
except for those that told only after it had ended: these are judged twice, each time by the publisher's word.

Pure: it is told when polls happen, and knows no time.
"""

from typing import Literal, NamedTuple

from msgspec import Struct

Verdict = Literal["compared", "unmatched", "unpredicted"]


class Counted(NamedTuple):
    """A publisher's counters: prompt tokens since its start, and how many of them it did not compute."""

    prompt: int
    cached: int


class Finding(NamedTuple):
    """What a span came to, in tokens.

    "compared": `predicted` is to be held against `reported`. "unmatched": the publisher counted other prompt tokens
    than were sent. "unpredicted": for some of its requests there was no prediction.
    """

    verdict: Verdict
    predicted: int = 0
    reported: int = 0


class Audit(Struct):
    """One publisher's spans. Every `sent` is followed by one `answered` or `failed`. All O(1)."""

    _waiting: int = 0
    _moves: int = 0
    _began: Counted | None = None
    _prompt: int = 0  # tokens sent, and how many of them are to be cached
    _cached: int = 0
    _answers: int = 0
    _unpredicted: bool = False
    _told: bool = False

    def sent(self) -> None:
        """A request goes out."""
        self._waiting += 1
        self._moves += 1

    def answered(self, expected: Counted | None) -> None:
        """A request's first byte has come; `expected` of it, None if that is not known."""
        self._waiting -= 1
        self._moves += 1
        self._answers += 1
        if expected is None:
            self._unpredicted = True
        else:
            prompt, cached = expected
            self._prompt += prompt
            self._cached += cached

    def failed(self) -> None:
        """A request ended without a first byte."""
        self._waiting -= 1
        self._moves += 1

    def told(self) -> None:
        """An answer said itself what it reused, and needs no judgement here."""
        self._told = True

    @property
    def moves(self) -> int:
        """Changes so far: for `polled`."""
        return self._moves

    def polled(self, moves: int, counted: Counted | None) -> Finding | None:
        """The publisher's counters, asked for when `moves` was as given; None if it has none.

        Returns what the span that ends with this poll came to; None if it goes on, or had nothing to judge.
        """
        if self._waiting or self._moves != moves:
            return None
        finding = self._judge(self._began, counted)
        self._began = counted
        self._prompt = self._cached = self._answers = 0
        self._unpredicted = self._told = False
        return finding

    def _judge(self, began: Counted | None, ended: Counted | None) -> Finding | None:
        if began is None or ended is None or self._told or not self._answers:
            return None
        if self._unpredicted:
            return Finding("unpredicted")
        if ended.prompt - began.prompt != self._prompt:
            return Finding("unmatched")
        return Finding("compared", self._cached, ended.cached - began.cached)
