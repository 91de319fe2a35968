"""Scenarios by name whose load was recorded, and lies in a directory that the user names."""

from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from loadgen.sim.scenarios import Scenario
from loadgen.workload.traces import format_of

_MOONCAKE: Final = ("conversation", "synthetic", "toolagent")
_SPEEDS: Final = (1, 3, 5)


# The profile's own decoding was fitted to an engine under documents of 48,000 tokens, which is not theirs.
_DECODE: Final = {"decode_us_per_kilotoken_context": 14.4}


def _scenario(kind: str, path: str, speed: float = 1.0, **changes: int) -> Scenario:
    return Scenario(pods=8, trace={"type": kind, "path": path, "speed": speed}, profile_changes={**_DECODE, **changes})


TRACED: Final = {
    f"mooncake-{name}{'' if speed == 1 else f'-x{speed}'}": _scenario("mooncake", f"{name}_trace.jsonl", speed)
    for name in _MOONCAKE
    for speed in _SPEEDS
} | {
    # Sessions begin together and grow to 200,000 tokens, and are to be seen to their ends.
    "aiperf-agentic": replace(_scenario("aiperf", "*.jsonl", max_model_len=262_144), client_timeout_s=3_600.0)
}
"""By name. The path is a name in the directory of traces, or a pattern where the one in this format is meant."""


def traced(name: str, directory: Path | None) -> Scenario:
    """One of TRACED with its file. Raises ValueError where there is no such file, or more than one."""
    scenario = TRACED[name]
    trace = dict(scenario.trace or {})
    if directory is None:
        raise ValueError(f"scenario {name} needs --traces DIR, a directory with {_wanted(trace)}")
    if not directory.is_dir():
        raise ValueError(f"--traces {directory}: there is no such directory")
    found = _found(trace, directory)
    if len(found) != 1:
        raise ValueError(f"--traces {directory}: {len(found) or 'no'} files are {_wanted(trace)}, for scenario {name}")
    return replace(scenario, trace=trace | {"path": str(found[0])})


def _found(trace: dict[str, Any], directory: Path) -> list[Path]:
    """Files that it may be: by their names, as published and with the publisher's in front, else by their format."""
    kind, name = trace["type"], trace["path"]
    if "*" in name:
        return [path for path in sorted(directory.glob(name)) if format_of(path) == kind]
    return [path for path in (directory / name, directory / f"{kind}_{name}") if path.is_file()][:1]


def _wanted(trace: dict[str, Any]) -> str:
    return f"{trace['path']} in the form of {trace['type']}" if "*" in trace["path"] else str(trace["path"])
