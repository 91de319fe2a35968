"""Questions to a gateway that runs, from the commands that show what it knows."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from config.addresses import http_address
from config.keys import secret

_DEFAULT_URL: Final = "http://127.0.0.1:8080"
_KEY: Final = "P2P_GATEWAY_KEY"
_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 10.0  # a fleet of 128 pods is scraped in well under a second


class NoAnswer(Exception):
    """In one line."""


class Refused(Exception):
    """What a gateway says to a question that it does not answer, in one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Detail(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    error: _Detail


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which gateway, and with which key."""
    parser.add_argument("--url", default=_DEFAULT_URL, help=f"of the gateway or of its admin listener ({_DEFAULT_URL})")
    parser.add_argument("--key-file", metavar="FILE", help=f"the API key to ask with; else ${_KEY}, else none")


class Asking:
    """One gateway. Every question has a deadline."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.url = url
        self._http = http

    async def get(self, path: str) -> bytes:
        """The answer's body. Raises NoAnswer, Refused."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: bytes) -> bytes:
        """Likewise, to a JSON body."""
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._http.request(method, self.url + path, data=body, headers=headers) as answer:
                told = await answer.read()
        except TimeoutError as error:
            raise NoAnswer(f"{self.url} does not answer") from error
        except aiohttp.ClientError as error:
            reason = getattr(getattr(error, "os_error", None), "strerror", None) or str(error) or type(error).__name__
            raise NoAnswer(f"{self.url}: {' '.join(reason.split())}") from error
        if answer.status != 200:
            raise Refused(answer.status, f"{self.url}{path}: {_reason(answer.status, told)}")
        return told


@asynccontextmanager
async def asking(args: argparse.Namespace) -> AsyncIterator[Asking]:
    """The gateway that the arguments name. Raises NoAnswer for a URL that is none, ConfigError for a key's file."""
    url = args.url.rstrip("/")
    try:
        http_address(url)
    except ValueError as error:
        raise NoAnswer(f"--url: {error}") from None
    key = secret(args.key_file) if args.key_file is not None else os.environ.get(_KEY)
    headers = {} if not key else {"authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http:
        yield Asking(http, url)


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Rows as lines with their columns under each other: the first `left` ones flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _reason(status: int, told: bytes) -> str:
    try:
        message = msgspec.json.decode(told, type=_Error).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = ""
    return " ".join(message.split()) or f"status {status}"
