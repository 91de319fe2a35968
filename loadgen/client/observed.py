"""From what was noted of an answer to its record."""

from itertools import pairwise
from typing import Final

from loadgen.client.answer import Answer
from loadgen.client.failures import Failure
from loadgen.client.schedule import Due
from loadgen.report.record import Record

_POD: Final = b"x-gateway-pod"
_SOURCE: Final = b"x-gateway-kv-source"


def observed(due: Due, answer: Answer, failure: Failure | None, *, origin: float, sent: float, ended: float) -> Record:
    """Return the record of a request; `origin` is the clock when the load began, `sent` and `ended` are since then."""
    request, times, usage = due.request, answer.events.times, answer.events.usage
    return Record(
        number=request.number,
        request_id="",
        session=request.session,
        phase=request.phase,
        seed=0,
        warm_up=False,
        scheduled_s=due.at,
        sent_s=sent,
        ended_s=ended,
        status=answer.status,
        error=None if failure is None else failure.kind,
        detail=None if failure is None else str(failure),
        pod=answer.header(_POD),
        source=answer.header(_SOURCE),
        prompt_tokens=usage.prompt_tokens if usage else request.prompt_tokens,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.completion_tokens if usage else len(times),
        connect_ms=answer.connect_s * 1e3,
        first_byte_ms=(answer.first_byte - origin - sent) * 1e3 if answer.first_byte else None,
        ttft_ms=(times[0] - origin - due.at) * 1e3 if times else None,
        itl_ms=[(later - earlier) * 1e3 for earlier, later in pairwise(times)],
    )
