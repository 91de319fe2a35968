import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_patch import stale_memory
from engine_patch.stale_memory import main, remove_stale_files


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    directory = tmp_path / "shm"
    directory.mkdir()
    return directory


def offload_file(directory: Path, name: str = "vllm_offload_1f2e_dp0.mmap", size: int = 8192) -> Path:
    path = directory / name
    path.write_bytes(b"\1" * size)
    return path


def mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@pytest.fixture
def mapped_file(shm: Path) -> Iterator[Path]:
    path = offload_file(shm)
    memory = mapped(path)
    yield path
    memory.close()


def test_a_file_that_nobody_maps_is_removed_with_its_size_told(shm: Path) -> None:
    path = offload_file(shm)
    ((removed, occupied),) = remove_stale_files(shm, min_age_s=0)
    assert removed == path
    assert occupied >= 8192
    assert not path.exists()


def test_a_file_that_a_process_maps_is_kept_though_its_descriptor_is_closed(shm: Path, mapped_file: Path) -> None:
    assert remove_stale_files(shm, min_age_s=0) == []
    assert mapped_file.exists()


def test_a_file_that_a_process_only_holds_open_is_kept(shm: Path) -> None:
    path = offload_file(shm)
    with path.open("rb"):
        assert remove_stale_files(shm, min_age_s=0) == []
    assert path.exists()


def test_a_file_that_another_pod_has_just_made_is_kept(shm: Path) -> None:
    path = offload_file(shm)
    assert remove_stale_files(shm) == []
    assert path.exists()


def test_only_files_of_offloading_are_looked_at(shm: Path) -> None:
    others = [offload_file(shm, name) for name in ("psm_1234", "vllm_offload_1", "my_vllm_offload_1.mmap")]
    assert remove_stale_files(shm, min_age_s=0) == []
    assert all(other.exists() for other in others)


def test_one_stale_file_goes_while_the_living_one_beside_it_stays(shm: Path, mapped_file: Path) -> None:
    stale = offload_file(shm, "vllm_offload_dead.mmap")
    assert [path for path, _ in remove_stale_files(shm, min_age_s=0)] == [stale]
    assert mapped_file.exists()


def test_the_same_file_under_another_directory_counts_as_in_use(shm: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "container"
    elsewhere.mkdir()
    path = offload_file(shm)
    memory = mapped(offload_file(elsewhere))
    assert remove_stale_files(shm, min_age_s=0) == []
    assert path.exists()
    memory.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_a_file_that_cannot_be_removed_does_not_stop_the_pod(shm: Path) -> None:
    offload_file(shm)
    shm.chmod(0o500)
    try:
        assert remove_stale_files(shm, min_age_s=0) == []
    finally:
        shm.chmod(0o700)


def test_a_process_that_may_not_be_inspected_is_passed_over(shm: Path, tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "17").mkdir(parents=True)
    path = offload_file(shm)
    assert [removed for removed, _ in remove_stale_files(shm, min_age_s=0, proc=proc)] == [path]


def test_a_dry_run_tells_and_removes_nothing(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = offload_file(shm)
    monkeypatch.setattr(stale_memory, "SHM", shm)
    assert main(["--dry-run", "--min-age", "0"]) == 0
    assert capsys.readouterr().out == f"would remove {path} (0 MiB)\n"
    assert path.exists()
    assert main(["--min-age", "0"]) == 0
    assert capsys.readouterr().out == f"removed {path} (0 MiB)\n"
    assert not path.exists()
