"""`p2p-gateway top`: looks once a second, and shows what it sees; a gateway that goes away may come back."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from functools import partial
from typing import Any, Final

import msgspec

from config.load import ConfigError
from gateway.asking import Asking, NoAnswer, Refused, add_arguments, asking
from gateway.top.page import page
from gateway.top.rates import Page, rates
from gateway.top.rates import page as parsed
from gateway.top.screen import MissingRich, Screen, screen
from gateway.top.view import View, view

_REFUSED: Final = 1
_CANNOT_SHOW: Final = 3
_UNREADABLE: Final = (LookupError, TypeError, ValueError)  # of what is no gateway's answer


class _Look:
    """What two looks, one after the other, come to."""

    def __init__(self, gateway: Asking) -> None:
        self._gateway = gateway
        self._before: Page | None = None

    async def look(self) -> View:
        """What is to be seen now, with what happened since the last time. Raises NoAnswer, Refused."""
        try:
            return await self._look()
        except _UNREADABLE as error:  # DecodeErrors are ValueErrors
            raise NoAnswer(f"{self._gateway.url}: this is no gateway's answer: {error!r}") from error

    async def _look(self) -> View:
        before, self._before = self._before, None
        told: Any = msgspec.json.decode(await self._gateway.get("/pods"))
        text = (await self._gateway.get("/metrics")).decode()
        now = self._before = parsed(text, time.monotonic())
        return view(told, None if before is None else rates(before, now))


def register(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    add_arguments(parser)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default 1)")
    parser.add_argument("--once", action="store_true", help="print one table, of one interval, and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: somebody has seen enough, 1: refused by the gateway, 3: it cannot be asked or shown."""
    if not 0.1 <= args.interval <= 3600:
        return _failed("--interval: from 0.1 to 3600 seconds", _CANNOT_SHOW)
    try:
        asyncio.run(_run(args))
    except Refused as error:
        return _failed(str(error), _REFUSED)
    except (NoAnswer, ConfigError) as error:
        return _failed(str(error), _CANNOT_SHOW)
    except MissingRich:
        return _failed("top needs rich: pip install 'p2p-gateway[top]'; --once does without", _CANNOT_SHOW)
    except KeyboardInterrupt:
        return 130
    return 0


def _failed(reason: str, code: int) -> int:
    sys.stderr.write(f"p2p-gateway: {reason}\n")
    return code


async def _run(args: argparse.Namespace) -> None:
    is_terminal = sys.stdout.isatty()
    async with asking(args) as gateway:
        look = _Look(gateway)
        seen = await look.look()  # whoever mistypes an address is told at once
        if not args.once and is_terminal and os.environ.get("TERM") != "dumb":
            with screen() as shown:
                await _watch(look, seen, shown, args.interval)
            return
        await asyncio.sleep(args.interval)
        seen = await look.look()
    width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else None
    told = "\n".join(line.text for line in page(seen, width=width or None, height=None))
    sys.stdout.write(told + "\n")


async def _watch(look: _Look, seen: View, shown: Screen, interval: float) -> None:
    note = ""
    while True:
        shown.show(partial(_page, seen, note))
        try:
            async with asyncio.timeout(interval):
                await shown.left.wait()
        except TimeoutError:
            pass
        else:
            return
        looking = asyncio.ensure_future(look.look())
        leaving = asyncio.ensure_future(shown.left.wait())
        try:
            await asyncio.wait((looking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                return
            seen, note = looking.result(), ""
        except (NoAnswer, Refused) as error:
            note = f"{error}; trying again"
        finally:
            for task in (looking, leaving):
                task.cancel()
            await asyncio.gather(looking, leaving, return_exceptions=True)


def _page(seen: View, note: str, width: int, height: int) -> Any:  # noqa: ANN401 - lines, as `Screen` has them
    return page(seen, width=width, height=height, note=note)
