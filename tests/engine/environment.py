"""The environment that real vLLM pods run in: a virtual environment of its own, and the model they serve.

It lives outside the checkout, in `$P2P_GATEWAY_ENGINE_HOME` (default `~/.cache/p2p-gateway-engine`), one directory per
content of requirements.txt and Python version; building it takes about a minute and 4 GB. On machines whose package
index offers only CUDA builds of torch, name PyTorch's CPU index:

    P2P_GATEWAY_TORCH_INDEX=https://download.pytorch.org/whl/cpu make engine

A virtual environment cannot be moved, so it is built in place: a marker file, written last, says that it is complete,
and a lock keeps two builders apart.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
TORCH = "torch==2.13.0"
_REQUIREMENTS = HERE / "requirements.txt"
_MARKER = "complete"


class EngineEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod needs to start."""

    python: Path
    model: Path
    search_path: Path
    """A directory that holds nothing but the checkout's `engine_patch`, for PYTHONPATH."""


def prepare() -> EngineEnvironment:
    """The environment, built where it is missing; raises CalledProcessError when a step of building fails."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    venv = _venv(home)
    python = venv / "bin" / "python"
    with _complete(venv) as missing:
        if missing:
            _build_venv(venv, python)
    model_script = HERE / "model.py"
    model = home / f"model-{_digest(model_script.read_bytes(), venv.name.encode())}"
    with _complete(model) as missing:
        if missing:
            _run("making the model", python, model_script, model)
    return EngineEnvironment(python=python, model=model, search_path=_search_path(home))


def at_hand() -> Path | None:
    """The Python of the environment, if it was built before."""
    venv = _venv(_home())
    return venv / "bin" / "python" if (venv / _MARKER).exists() else None


def _home() -> Path:
    return Path(os.environ.get("P2P_GATEWAY_ENGINE_HOME") or Path.home() / ".cache/p2p-gateway-engine")


def _venv(home: Path) -> Path:
    return home / f"python{platform.python_version()}-{_digest(_REQUIREMENTS.read_bytes(), TORCH.encode())}"


def _build_venv(venv: Path, python: Path) -> None:
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    index = os.environ.get("P2P_GATEWAY_TORCH_INDEX")
    _run(f"making {venv}", sys.executable, "-m", "venv", venv)
    _run(f"installing {TORCH}", *install, TORCH, *(["--extra-index-url", index] if index else []))
    _run("installing vLLM and NIXL", *install, "--no-deps", "-r", _REQUIREMENTS)


def _search_path(home: Path) -> Path:
    # The checkout itself must not be on the path: its other packages have names like `index` and `config`.
    directory = home / f"patch-{_digest(str(CHECKOUT).encode())}"
    directory.mkdir(exist_ok=True)
    link = directory / "engine_patch"
    if not link.is_symlink():
        link.symlink_to(CHECKOUT / "engine_patch")
    return directory


@contextmanager
def _complete(directory: Path) -> Iterator[bool]:
    """Whether the directory is still to be made; it counts as made when the block ends without an error."""
    marker = directory / _MARKER
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not marker.exists()
        if missing:
            shutil.rmtree(directory, ignore_errors=True)
        yield missing
        marker.touch()


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _run(what: str, *command: object) -> None:
    sys.stderr.write(f"engine suite: {what} …")
    sys.stderr.flush()
    started = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        sys.stderr.write(f" failed\n{done.stdout.decode(errors='replace')}")
        done.check_returncode()
    sys.stderr.write(f" {time.monotonic() - started:.0f} s\n")


if __name__ == "__main__":
    environment = prepare()
    sys.stdout.write(f"{environment.python}\n{environment.model}\n")
