"""`p2p-gateway calibrate`: options in, files and text out."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from config.addresses import split_address
from config.load import Config, ConfigError, from_urls, load
from gateway import costs_file
from gateway.calibrate import plot
from gateway.calibrate.ladder import MOST_ROUNDS, LadderError
from gateway.calibrate.measure import CalibrationFailed, Climb, Measured
from gateway.calibrate.result import Result, learn, result
from gateway.calibrate.table import report
from gateway.direct import Address, DirectPod, reach
from scorers import Costs

_FAILED: Final = 1
_INTERRUPTED: Final = 130
_ROUNDS: Final = 5
_TIMEOUT_S: Final = 120.0
_MAX_TIME_S: Final = 900.0
_LONGEST_S: Final = 86_400


class Pair(NamedTuple):
    """The two pods, and where each serves pulls, None: not known."""

    config: Config
    addresses: tuple[Address | None, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        """As the gateway has them."""
        return tuple(pod.url.rstrip("/") for pod in self.config.pods)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--pods", required=True, metavar="A,B", help="URLs of two pods of one model, both idle")
    parser.add_argument(
        "--config",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="the gateway's configuration, for the pods' P2P addresses, keys and certificates",
    )
    parser.add_argument(
        "--p2p", metavar="A,B", help="HOST:PORT at which each serves pulls (as configured; else its host, port 5710)"
    )
    parser.add_argument("--model", help="the model's name in requests (the first that both serve)")
    parser.add_argument(
        "--lengths", metavar="N,N", help="tokens of the prompts (512 … 32768, as far as pods take them)"
    )
    parser.add_argument(
        "--rounds", type=int, default=_ROUNDS, help="measurements of each length, each way (%(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, help="seconds for one answer (%(default).0f)")
    parser.add_argument("--max-time", type=float, default=_MAX_TIME_S, help="seconds for all of it (%(default).0f)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it there, .png or .svg")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="add the costs to the file of the gateway's costs.path"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print, write. 1: the pods cannot be measured, 130: by Ctrl-C.

    ConfigError: the options do not fit together.
    """
    lengths, pair = _checked(args)
    kept = _kept(args.save)
    if args.json is not None and not _is_device(args.json):
        _writable("--json", args.json)
    try:
        measured = asyncio.run(_measured(args, pair, lengths))
    except CalibrationFailed as error:
        sys.stderr.write(f"calibrate: {error}\n")
        return _FAILED
    except LadderError as error:  # only the pods know how much they take
        raise ConfigError(f"--lengths: {error}") from error
    except KeyboardInterrupt:
        sys.stderr.write("calibrate: interrupted: nothing is written\n")
        return _INTERRUPTED
    found = _result(measured, pair)
    sys.stdout.write(report(found))
    try:
        if args.save is not None:
            _save(args.save, kept, measured, pair.urls)
        if args.json is not None:
            _write(args.json, msgspec.json.format(msgspec.json.encode(found.document())) + b"\n")
        if args.plot is not None:
            plot.plot(args.plot, found)
    except OSError as error:
        sys.stderr.write(f"calibrate: {error}\n")
        return _FAILED
    return 0


def _checked(args: argparse.Namespace) -> tuple[list[int] | None, Pair]:
    if not 1 <= args.rounds <= MOST_ROUNDS:
        raise ConfigError(f"--rounds: 1 … {MOST_ROUNDS}, not {args.rounds}")
    for name in ("timeout", "max_time"):
        if not 0 < getattr(args, name) <= _LONGEST_S:
            raise ConfigError(f"--{name.replace('_', '-')}: 0 … {_LONGEST_S} seconds, not {getattr(args, name):g}")
    if args.plot is not None:
        try:
            plot.check(args.plot)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    try:
        lengths = None if args.lengths is None else [int(each) for each in args.lengths.split(",")]
    except ValueError:
        raise ConfigError(f"--lengths: {args.lengths!r} are no numbers such as 1024,4096") from None
    return lengths, _pair(args)


def _pair(args: argparse.Namespace) -> Pair:
    urls = [url.strip().rstrip("/") for url in args.pods.split(",")]
    if len(urls) != 2 or urls[0] == urls[1]:
        raise ConfigError(f"--pods: two URLs with a comma between, not {args.pods!r}")
    given = _given_addresses(args.p2p)
    config = from_urls(urls) if getattr(args, "config", None) is None else load(args.config)
    known = {pod.url.rstrip("/"): pod for pod in config.pods}
    if missing := [url for url in urls if url not in known]:
        raise ConfigError(f"--pods: {missing[0]} is not a pod of {args.config}")
    pods = tuple(known[url] for url in urls)
    addresses = config.p2p_addresses()
    own = tuple(addresses[pod.name] for pod in pods)
    return Pair(msgspec.structs.replace(config, pods=pods), given or own)


def _given_addresses(p2p: str | None) -> tuple[Address, ...]:
    if p2p is None:
        return ()
    try:
        found = tuple(split_address(address.strip()) for address in p2p.split(","))
    except ValueError as error:
        raise ConfigError(f"--p2p: {error}") from None
    if len(found) != 2:
        raise ConfigError(f"--p2p: two addresses with a comma between, not {p2p!r}")
    return found


async def _measured(args: argparse.Namespace, pair: Pair, lengths: list[int] | None) -> Measured:
    async with reach(pair.config) as api:
        pods = [
            DirectPod(api, spec, address, timeout=args.timeout, rank=0 if spec.data_parallel_size > 1 else None)
            for spec, address in zip(pair.config.pods, pair.addresses, strict=True)
        ]
        return await Climb(pods, max_time=args.max_time, tell=_tell).measure(lengths, args.rounds, args.model)


def _tell(line: str) -> None:
    sys.stderr.write(f"calibrate: {line}\n")
    sys.stderr.flush()


def _result(measured: Measured, pair: Pair) -> Result:
    costs = Costs()
    learn(costs, pair.urls, measured.rungs)
    hosts = {address[0] for address in pair.addresses if address is not None}
    return result(
        costs,
        measured.model,
        pair.urls,
        measured.rungs,
        measured.first_pulls,
        same_host=len(hosts) == 1,
        warnings=measured.warnings,
    )


def _kept(path: Path | None) -> dict[str, Any] | None:
    """What the file to save to holds already; None: nothing."""
    if path is None:
        return None
    _writable("--save", path)
    try:
        return costs_file.kept(str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--save: {path} is there, and no file of costs: {error}") from error


def _is_device(path: Path) -> bool:
    """Whether it is no file, as /dev/stdout."""
    return path.exists() and not path.is_file()


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing, where that can be."""
    if _is_device(path):
        path.write_bytes(data)
    else:
        costs_file.replace(path, data)


def _writable(option: str, path: Path) -> None:
    """Before anything is measured."""
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{option}: {path.parent} is not a directory that can be written to")


def _save(path: Path, kept: dict[str, Any] | None, measured: Measured, urls: Sequence[str]) -> None:
    """What other pods have taught stays; of these two pods what was measured takes its place."""
    costs = Costs()
    if kept is not None:
        costs.restore(kept)
    learn(costs, urls, measured.rungs)
    costs_file.keep(str(path), costs.state(float(len(measured.rungs))))
    sys.stderr.write(f"calibrate: costs saved to {path}; a gateway reads them when it starts\n")
