"""Why a prompt is not tokenized here."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "engine-renders",  # the engine does not use the chat template for this model (harmony, tekken, ...)
    "invalid",  # the engine will refuse the request, or means something by it that is not known here
    "media",  # the prompt's tokens depend on images, audio or video
    "no-template",  # there is no chat template
    "saturated",  # too many prompts wait for a thread
    "stored-response",  # the prompt goes on from a response that a pod keeps
    "template",  # the template refused the conversation, failed or took too long
    "tokenizer",  # the tokenizer refused the text
    "truncated",  # the engine cuts the prompt off where it is too long
    "untrusted-template",  # the request brings its own template
]


class Refused(Exception):
    """No exact ids can be made of this prompt: `reason` is for counters, `detail` for people.

    Never leaves the package.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail
