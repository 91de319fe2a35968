"""Records of made-up requests."""

from typing import Any

from loadgen.report.record import Record


def record(number: int = 0, **fields: Any) -> Record:
    """Due at `number` seconds, sent 1 ms later; first token 101 ms after it was due, four more 10 ms apart."""
    usual: dict[str, Any] = {
        "request_id": f"run-{number}",
        "session": "s",
        "phase": "",
        "seed": 0,
        "warm_up": False,
        "scheduled_s": float(number),
        "sent_s": number + 0.001,
        "ended_s": number + 0.15,
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "output_tokens": 5,
        "first_byte_ms": 99.0,
        "ttft_ms": 101.0,
        "itl_ms": [10.0] * 4,
    }
    return Record(number=number, **usual | fields)


def failure(number: int = 0, error: str = "timeout", **fields: Any) -> Record:
    return record(number, error=error, ttft_ms=None, itl_ms=[], cached_tokens=None, output_tokens=0, **fields)
