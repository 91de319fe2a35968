"""Which model an endpoint serves, where nobody said."""

import asyncio
from typing import Final

import msgspec

from loadgen.client.answer import Answer
from loadgen.client.failures import Failure, Unreadable
from loadgen.client.pool import Endpoint, Pool

_DEADLINE_S: Final = 10.0
_OK: Final = 200


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


async def first_model(pool: Pool, endpoint: Endpoint, headers: dict[str, str]) -> str:
    """Return the first model of `GET /v1/models`; raises Failure where none is to be had."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": endpoint.authority, **headers}.items())
    head = f"GET {endpoint.base}/models HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace")
    answer = Answer()
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await pool.exchange(head, b"", answer)
    except TimeoutError as error:
        raise Failure("timeout", f"{endpoint.authority} does not tell its models within {_DEADLINE_S:g} s") from error
    if answer.status != _OK:
        answer.judge()
    try:
        return msgspec.json.decode(answer.body, type=_Models).data[0].id
    except (msgspec.DecodeError, IndexError) as error:
        raise Unreadable(f"{endpoint.authority} names no model: {error}") from error
