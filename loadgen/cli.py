"""``p2p-loadgen``: one sub-command per module that registers itself in ``_COMMANDS``."""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from loadgen import compare_command, demo, pod_command, run_command
from loadgen.sim import command as sim_command
from loadgen.sim import replay_command


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    parser = argparse.ArgumentParser(prog="p2p-loadgen", description="Workloads and simulated pods for p2p-gateway.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for register in _COMMANDS:
        register(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    with contextlib.suppress(KeyboardInterrupt):
        return run(arguments)
    return 130


_COMMANDS: Final[list[Callable[[_SubParsers], None]]] = [
    pod_command.register,
    demo.register,
    run_command.register,
    compare_command.register,
    sim_command.register,
    replay_command.register,
]
