"""Shared memory that dead pods left behind.

A pod's CPU tier is a file `/dev/shm/vllm_offload_<engine id>.mmap`, mapped by the scheduler and by every worker. A pod
that ends in order removes it. A pod that is killed does not: the file keeps its gigabytes until somebody removes its
name, and when enough of them have gathered no pod can start. In a container whose `/dev/shm` is a volume this survives
the restart of the container.

A file is stale when all of these hold:

* it belongs to the current user (the files are mode 0600, so the pod that made it ran as that user);
* no process maps it or holds it open, by `/proc/*/maps` and `/proc/*/fd`. A process that may not be inspected runs as
  another user, who could not have opened the file either;
* its last change is at least `MIN_AGE_S` ago. This spares a pod that has created its file and not yet mapped it.

Between its creation and the end of a pod's start-up the name matters: a process of that pod that comes late and
finds no file would quietly make its own. So the check of `/proc` must see the pods that share this `/dev/shm`: do not
use this where containers share `/dev/shm` but not their process ids. After start-up the name no longer matters;
removing it takes nothing from the processes that have mapped the file.

Run it before a pod starts: `python -m engine_patch.stale_memory [--dry-run]`.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SHM = Path("/dev/shm")  # noqa: S108
PATTERN = "vllm_offload_*.mmap"

MIN_AGE_S = 30.0
"""vLLM gives its own processes 30 s to find the file at its full size, and maps it at once after that."""


def remove_stale_files(
    directory: Path, *, min_age_s: float = MIN_AGE_S, proc: Path = Path("/proc"), dry_run: bool = False
) -> list[tuple[Path, int]]:
    """Remove the stale offload files of `directory`; with `dry_run` only find them.

    Returns each file's path with the bytes it occupied. A file that vanishes meanwhile is left out; one that cannot be
    removed is left out too, since another pod's start-up must not fail for it. Reads the memory map of every process.
    """
    candidates = [path for path in directory.glob(PATTERN) if _is_ours_and_old(path, min_age_s)]
    if not candidates:
        return []
    in_use = set(_names_in_use(proc))
    removed = []
    for path in candidates:
        if path.name in in_use:
            continue
        try:
            occupied = path.stat().st_blocks * 512
            if not dry_run:
                path.unlink()
        except OSError:
            continue
        removed.append((path, occupied))
    return removed


def _is_ours_and_old(path: Path, min_age_s: float) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    changed = max(status.st_mtime, status.st_ctime)
    return status.st_uid == os.geteuid() and time.time() - changed >= min_age_s


def _names_in_use(proc: Path) -> Iterator[str]:
    """Names of all offload files that a process maps or holds open.

    By name, not by path: a process in another mount namespace sees the same file under another directory.
    """
    for process in proc.glob("[0-9]*"):
        try:
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if "/vllm_offload_" in line:
                    yield _file_name(line)
            for descriptor in (process / "fd").iterdir():
                target = str(descriptor.readlink())
                if "/vllm_offload_" in target:
                    yield _file_name(target)
        except OSError:
            # Ended meanwhile, or not ours to inspect (see the module's head).
            continue


def _file_name(text: str) -> str:
    return text.rsplit("/", 1)[1].removesuffix(" (deleted)")


def main(arguments: list[str] | None = None) -> int:
    """Command line: prints one line per file; the exit code is always 0, since a pod can start either way."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_patch.stale_memory",
        description="Free shared memory that dead vLLM pods left in /dev/shm.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--min-age", type=float, default=MIN_AGE_S, metavar="SECONDS", help="spare files changed less than this ago"
    )
    options = parser.parse_args(arguments)
    verb = "would remove" if options.dry_run else "removed"
    for path, occupied in remove_stale_files(SHM, min_age_s=options.min_age, dry_run=options.dry_run):
        sys.stdout.write(f"{verb} {path} ({occupied / 2**20:.0f} MiB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
