"""`p2p-gateway check`: options in, findings out."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec
import zmq.asyncio

from config.load import Config, ConfigError, from_urls, load
from gateway.checks.compare import compare, fleets
from gateway.checks.facts import PodFacts
from gateway.checks.finding import Finding, exit_code, summary
from gateway.checks.judge import judge, settled
from gateway.checks.look import Looker, PodUnderCheck, look_at_all
from gateway.checks.pulls import pairs, try_all
from gateway.direct import DirectPod, reach

_AT_ONCE: Final = 8
"""Pods looked at, and pulls tried, at once: each is a request or two."""

_TIMEOUT_S: Final = 60.0
_LONGEST_S: Final = 86_400
_OFF: Final = Finding(
    "warn", "enabled", "the gateway", "p2p.enabled is false: it never names a source", "set it to true, or leave it out"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--config", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="the gateway's configuration"
    )
    parser.add_argument(
        "--pod", action="append", default=argparse.SUPPRESS, metavar="URL", help="this pod, with defaults; repeatable"
    )
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, help="seconds for one answer (%(default).0f)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what was found; 0: pulls can work, 1: not everywhere. ConfigError: there is nothing to check."""
    config = _config(args)
    findings = asyncio.run(check(config, args.timeout))
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    else:
        sys.stdout.writelines(f"{finding.line}\n" for finding in findings)
        sys.stdout.write(f"{summary(findings)}\n")
    return exit_code(findings)


def _config(args: argparse.Namespace) -> Config:
    if not 0 < args.timeout <= _LONGEST_S:
        raise ConfigError(f"--timeout: 0 … {_LONGEST_S} seconds, not {args.timeout:g}")
    file, urls = getattr(args, "config", None), getattr(args, "pod", [])
    if file is not None and urls:
        raise ConfigError("--config and --pod exclude each other: list the pods in the file")
    return from_urls(urls) if file is None else load(file)


async def check(config: Config, timeout: float) -> list[Finding]:  # noqa: ASYNC109 - of each answer, not of this call
    """All findings, pod by pod, then what lies between pods. Raises ConfigError."""
    addresses = config.p2p_addresses()
    context = zmq.asyncio.Context()
    try:
        async with reach(config) as api, AsyncExitStack() as stack:
            pods = [DirectPod(api, spec, addresses[spec.name], timeout=timeout) for spec in config.pods]
            looker = Looker(api, config.poll, context, stack, timeout=timeout)
            seen = await look_at_all(looker, pods, _AT_ONCE)
            findings = [] if config.p2p.enabled else [_OFF]
            findings += (finding for pod in seen for finding in judge(pod.facts))
            for fleet in fleets([pod.facts for pod in seen]):
                findings += compare(fleet)
                findings += await _pulls(fleet, seen)
            return settled(findings)
    finally:
        context.destroy(linger=0)


async def _pulls(fleet: Sequence[PodFacts], seen: Sequence[PodUnderCheck]) -> list[Finding]:
    members = [pod for pod in seen if any(pod.facts is each for each in fleet)]
    return await try_all(list(pairs(members)), fleet[0].model or "", _AT_ONCE)
