"""`p2p-gateway`: serve, and what an operator asks beside it. Exit code 3: it cannot start as configured."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
import uvloop

from config.json_schema import json_schema
from config.listeners import Listen
from config.load import Config, ConfigError, from_urls, load
from gateway import explain_command, logs, pod_args, top
from gateway.calibrate import command as calibrate
from gateway.checks import command as check
from gateway.reload import ConfigFile
from gateway.server import StartError, serve

CANNOT_START = 3
_CUT_SHORT = 1
# Of Python's collector. As it comes it looks through all that lives whenever that has grown by a quarter, which with
# 5,000 streams stops the loop for 0.4 s; hardly anything here needs it, since what is done with is freed at once. So: a
# look at what is new after 10,000 objects (3 ms), at what is left of 50,000 (15 ms), at everything after a million.
_COLLECT_AFTER = (10_000, 4, 20)
# Of Python's lock: after so long a thread that works on a prompt hands it over to the loop when that waits for it. As
# it comes (5 ms), cold prompts of 128K tokens make the loop 7 ms late at p99, so 4 ms; less than this gains no more.
_HAND_OVER_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (ConfigError, StartError) as error:
        print(f"p2p-gateway: {error}", file=sys.stderr)  # noqa: T201 - the one line a person reads
        return CANNOT_START


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="p2p-gateway",
        description="One OpenAI endpoint in front of vLLM pods that pull KV blocks from each other.",
    )
    parser.add_argument("--version", action="version", version=version("p2p-gateway"))
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration (YAML); see config/gateway.yaml")
    parser.add_argument(
        "--pod", action="append", default=[], metavar="URL", help="serve this pod with defaults; repeatable"
    )
    parser.add_argument("--host", help="listen here instead of where the configuration says")
    parser.add_argument("--port", type=int, help="likewise")
    parser.add_argument(
        "--restore", metavar="FILE|URL", help="start with the index of a gateway: a saved /index/snapshot, or its URL"
    )
    parser.set_defaults(run=_serve)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    pods = commands.add_parser("pod-args", help="print the environment and flags that a vLLM pod needs")
    pod_args.add_arguments(pods)
    pods.set_defaults(run=pod_args.run)
    checked = commands.add_parser("check", help="find out whether pods can pull from each other, and what to change")
    check.add_arguments(checked)
    checked.set_defaults(run=check.run)
    calibrated = commands.add_parser("calibrate", help="measure what a pull costs against computing, between two pods")
    calibrate.add_arguments(calibrated)
    calibrated.set_defaults(run=calibrate.run)
    explain_command.register(
        commands.add_parser("explain", help="where a prompt would go, and why: asked of a gateway")
    )
    top.register(commands.add_parser("top", help="the fleet in a terminal, as a gateway sees it"))
    schema = commands.add_parser("schema", help="print the configuration's JSON schema")
    schema.set_defaults(run=_schema)
    demo = commands.add_parser("demo", help="simulated pods, a short story that ends in a pull, a gateway to look at")
    demo.add_argument("--once", action="store_true", help="end after the story")
    demo.set_defaults(run=_demo)
    return parser


def _serve(args: argparse.Namespace) -> int:
    config = _config(args)
    logs.configure(config.log)
    tune_interpreter()
    file = None if args.config is None else ConfigFile(args.config, partial(_config, args))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            drained = runner.run(serve(config, restore=args.restore, file=file))
    except ConfigError as error:  # of a file that the configuration names
        raise ConfigError(f"{args.config}: {error}") from error
    return 0 if drained else _CUT_SHORT


def tune_interpreter() -> None:
    """What would stop a serving process's loop for milliseconds, it does in smaller steps."""
    gc.set_threshold(*_COLLECT_AFTER)
    sys.setswitchinterval(_HAND_OVER_S)


def _config(args: argparse.Namespace) -> Config:
    if args.config is not None and args.pod:
        raise ConfigError("--config and --pod exclude each other: list the pods in the file")
    config = load(args.config) if args.config is not None else from_urls(args.pod)
    given = {name: value for name in ("host", "port") if (value := getattr(args, name)) is not None}
    try:
        listen = msgspec.convert(msgspec.structs.asdict(config.listen) | given, Listen)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--host, --port: {error}") from error
    return msgspec.structs.replace(config, listen=listen)


def _schema(_: argparse.Namespace) -> int:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n")
    return 0


def _demo(args: argparse.Namespace) -> int:
    """The demo is a client of the gateway, so it lives with the clients; nothing here imports it."""
    command = [sys.executable, "-m", "loadgen", "demo", *(["--once"] if args.once else [])]
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    sys.exit(main())
