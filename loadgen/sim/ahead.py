"""Prompts that are sent ahead of a turn, so that its pod has them when it comes."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from loadgen.workload import Request

PREFETCH: Final = "prefetch"
_FIRST_NUMBER: Final = 1 << 40  # no load is as long


def prefetched(requests: Iterable[Request], lead_s: float) -> Iterator[Request]:
    """The same load, and `lead_s` before each turn that somebody takes as long to think of, what it begins with.

    That is the turn's prompt without its last piece, which the user has not said yet; it is asked for one token, in the
    phase "prefetch". A turn that comes sooner is not announced.
    """
    number = _FIRST_NUMBER
    for request in requests:
        if request.after is not None and request.pause >= lead_s and len(request.prompt) > 1:
            yield replace(
                request,
                number=number,
                prompt=request.prompt[:-1],
                output_tokens=1,
                pause=request.pause - lead_s,
                phase=PREFETCH,
            )
            number += 1
        yield request
