"""The import contracts bite: a copy of the packages with one forbidden import is refused, by the contract's name."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
NAMES = {contract["id"]: contract["name"] for contract in SETTINGS["contracts"]}

FORBIDDEN = [
    ("layers", "index/radix.py", "scorers"),
    ("layers", "scorers/placement.py", "config.schema"),
    ("layers", "config/load.py", "gateway.errors"),
    ("pure", "index/tree.py", "asyncio"),
    ("pure", "index/sequence.py", "time"),
    ("pure", "scorers/kv_source.py", "random"),
    ("pure", "gateway/inject.py", "logging"),
    ("pure", "gateway/breaker.py", "time"),
    ("outside", "gateway/app.py", "loadgen.pod"),
    ("outside", "index/match.py", "loadgen.hashing"),
    ("blackbox", "loadgen/demo.py", "gateway.app"),
    ("blackbox", "loadgen/hashing.py", "index.block_hash"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    for package in SETTINGS["root_packages"]:
        shutil.copytree(CHECKOUT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def lint(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # import-linter looks for the packages in the folder it is started in, before anywhere else.
    program = Path(sys.executable).parent / "lint-imports"
    command = [str(program), "--no-cache", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)


def test_the_packages_keep_every_contract(copy: Path) -> None:
    linted = lint(copy)
    assert linted.returncode == 0, linted.stdout
    for name in NAMES.values():
        assert f"{name} KEPT" in linted.stdout


@pytest.mark.parametrize(("contract", "module", "imported"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(copy: Path, contract: str, module: str, imported: str) -> None:
    with (copy / module).open("a", encoding="utf-8") as source:
        source.write(f"\nimport {imported}\n")
    linted = lint(copy, "--contract", contract)
    assert linted.returncode != 0
    assert f"{NAMES[contract]} BROKEN" in linted.stdout
    assert f"{module.removesuffix('.py').replace('/', '.')} -> {imported}" in linted.stdout


def test_every_contract_is_broken_by_some_case() -> None:
    assert {contract for contract, _, _ in FORBIDDEN} == NAMES.keys()


def test_every_package_that_is_shipped_is_under_contract() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(SETTINGS["root_packages"]) == set(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
