"""Where the peers live: a virtual environment each, outside the checkout, built when it is missing.

In `$P2P_GATEWAY_BENCH_HOME` (default `~/.cache/p2p-gateway-bench`), one directory per pinned version and Python. A
marker, written last, says that one is complete, and a lock keeps two builders apart.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

_INSTALL_S: Final = 600


class Pin(NamedTuple):
    """A distribution at the version that is compared with."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


DYNAMO: Final = Pin("ai-dynamo-runtime", "1.6.1")
VLLM_ROUTER: Final = Pin("vllm-router", "0.1.17")


class PeerMissing(Exception):
    """The peer cannot be had here; one line says why."""


def peer(pin: Pin) -> Path:
    """The `bin` directory of the peer's environment. Raises PeerMissing."""
    home = Path(os.environ.get("P2P_GATEWAY_BENCH_HOME") or Path.home() / ".cache/p2p-gateway-bench")
    venv = home / f"{pin.package}-{pin.version}-python{platform.python_version()}"
    marker = venv / "complete"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            shutil.rmtree(venv, ignore_errors=True)
            _build(venv, pin)
            marker.touch()
    return venv / "bin"


def _build(venv: Path, pin: Pin) -> None:
    sys.stderr.write(f"bench: installing {pin} …\n")
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--retries", "1", "--only-binary", ":all:", f"{pin.package}=={pin.version}"],
    ):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{pin}: not installed within {_INSTALL_S} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise PeerMissing(f"{pin}: {lines[-1].removeprefix('ERROR: ')}")
