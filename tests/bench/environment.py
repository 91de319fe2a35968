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
_SHORT_COMMIT: Final = 8
_CHECKOUT: Final = "P2P_GATEWAY_BENCH_"
"""Of the variable, ending in the package's name, that says where a checkout of it is, where git cannot get one."""


class Pin(NamedTuple):
    """A distribution at the version that is compared with; `beside` are requirements that pip does not find alone.

    One that is not on PyPI has a git `repository`, its version being a commit. `pythons` are those that it can do with,
    by the commands' names, where the one that runs here is none.
    """

    package: str
    version: str
    extra: str = ""
    beside: tuple[str, ...] = ()
    repository: str = ""
    pythons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.package} {self.version[:_SHORT_COMMIT] if self.repository else self.version}"

    def requirements(self) -> list[str]:
        """For pip."""
        if self.repository:
            checkout = os.environ.get(f"{_CHECKOUT}{self.package.upper().replace('-', '_')}")
            return [checkout or f"git+{self.repository}@{self.version}", *self.beside]
        return [f"{self.package}{self.extra}=={self.version}", *self.beside]

    def python(self) -> str:
        """Raises PeerMissing."""
        found = next(filter(None, map(shutil.which, self.pythons)), None) if self.pythons else sys.executable
        if found is None:
            raise PeerMissing(f"{self}: none of {', '.join(self.pythons)} on the PATH")
        return found


DYNAMO: Final = Pin("ai-dynamo-runtime", "1.6.1")
# Of what it needs only pre-releases were published, which pip takes when they are named; 1.6.1 cannot be satisfied.
DYNAMO_FRONTEND: Final = Pin("ai-dynamo", "1.6.0", beside=("aisimulate==0.13.0.dev202610270000000085",))
DYNAMO_REPLAY: Final = Pin(
    "ai-dynamo", "1.1.1", beside=("aiohttp", "numpy", "tqdm")
)  # whose timing loadgen.sim.timing has
LITELLM: Final = Pin("litellm", "1.106.12", "[proxy]")  # the newest whose proxy can be installed with pip
SGLANG_ROUTER: Final = Pin("sglang-router", "0.3.2")
VLLM_ROUTER: Final = Pin("vllm-router", "0.1.17")
PRODUCTION_STACK: Final = Pin(
    "production-stack",
    "a7d2672bd43c79fea3dbb8312bb68508b60060df",  # of its chart 0.1.7
    repository="https://github.com/vllm-project/production-stack",
    pythons=("python3.12", "python3.13"),
)


class PeerMissing(Exception):
    """The peer cannot be had here; one line says why."""


def peer(pin: Pin) -> Path:
    """The `bin` directory of the peer's environment. Raises PeerMissing."""
    home = Path(os.environ.get("P2P_GATEWAY_BENCH_HOME") or Path.home() / ".cache/p2p-gateway-bench")
    python = pin.python()
    venv = home / f"{pin.package}-{pin.version}-python{_version(python)}"
    marker = venv / "complete"
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            shutil.rmtree(venv, ignore_errors=True)
            _build(venv, pin, python)
            marker.touch()
    return venv / "bin"


def _build(venv: Path, pin: Pin, python: str) -> None:
    sys.stderr.write(f"bench: installing {pin} …\n")
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [python, "-m", "venv", str(venv)],
        [*pip, "--retries", "1", "--only-binary", ":all:", *pin.requirements()],
    ):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
        except subprocess.TimeoutExpired as error:
            raise PeerMissing(f"{pin}: not installed within {_INSTALL_S} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
            raise PeerMissing(f"{pin}: {lines[-1].removeprefix('ERROR: ')}")


def _version(python: str) -> str:
    if python == sys.executable:
        return platform.python_version()
    asked = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=_INSTALL_S).stdout.strip()
