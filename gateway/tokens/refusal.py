"""Why a prompt's token ids are not known, or not here."""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "batch-too-large",  # more texts than are tokenized for one request
    "breaker",  # every pod that could be asked has failed at this lately
    "differs",  # the model's files do not come to what its pods say
    "embeds",  # the prompt is given as embeddings
    "endpoint",  # a path without a prompt that is cached
    "engine-renders",  # the engine does not use the chat template for this model (harmony, tekken, ...)
    "fault",  # of this gateway; the log has it
    "invalid",  # the engine will refuse the request, or means something by it that is not known here
    "media",  # the prompt's tokens depend on images, audio or video
    "no-files",  # the model's tokenizer files are not at hand
    "no-template",  # there is no chat template
    "rejected",  # the pod refused the question
    "saturated",  # too many prompts wait for a thread, or for a pod
    "stored-response",  # the prompt goes on from what only a pod keeps
    "template",  # the template refused the conversation, failed or took too long
    "timeout",  # no pod told in time
    "tokenizer",  # the tokenizer refused the text
    "truncated",  # the engine is to cut the prompt
    "unreachable",  # no pod could be asked
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
