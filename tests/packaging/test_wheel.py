"""What an installation gets, and what it does not."""

import ast
import os
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGES = {"gateway", "index", "scorers", "config", "loadgen"}


class Wheel(NamedTuple):
    """A built wheel, unpacked."""

    folder: Path
    names: frozenset[str]

    def tops(self) -> set[str]:
        return {name.split("/")[0] for name in self.names if ".dist-info/" not in name}

    def information(self, name: str) -> str:
        (path,) = self.folder.glob(f"*.dist-info/{name}")
        return path.read_text(encoding="utf-8")

    def metadata(self) -> Message:
        return message_from_string(self.information("METADATA"))


def build(project: Path, folder: Path) -> Wheel:
    # Without isolation: a test must not need the network.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (archive,) = folder.glob("*.whl")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(archive) as wheel:
        wheel.extractall(unpacked)
        return Wheel(unpacked, frozenset(wheel.namelist()))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return build(CHECKOUT, tmp_path_factory.mktemp("gateway"))


@pytest.fixture(scope="module")
def engine_patch(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return build(CHECKOUT / "engine_patch", tmp_path_factory.mktemp("engine_patch"))


def modules(project: Path) -> set[str]:
    return {str(path.relative_to(project.parent)) for path in project.rglob("*.py")}


def imported(source: str) -> set[str]:
    """Top-level names that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_wheel_holds_the_packages_and_nothing_else(gateway: Wheel) -> None:
    assert gateway.tops() == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_module_is_in_the_wheel_and_typed(gateway: Wheel, package: str) -> None:
    assert modules(CHECKOUT / package) <= gateway.names
    assert f"{package}/py.typed" in gateway.names


def test_the_files_beside_the_code_are_in_the_wheel(gateway: Wheel) -> None:
    beside = {
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / "config").rglob("*.*")
        if path.suffix in {".yaml", ".yml", ".json"}
    }
    assert beside >= {
        "config/gateway.yaml",
        "config/examples/two-pods.yaml",
        "config/grafana/p2p-gateway.json",
        "config/prometheus/prometheus.yml",
    }
    assert beside <= gateway.names


def test_the_live_page_is_in_the_wheel_with_the_licence_of_what_it_brings(gateway: Wheel) -> None:
    static = CHECKOUT / "gateway" / "web" / "static"
    page = {str(path.relative_to(CHECKOUT)) for path in static.rglob("*") if path.is_file()}
    assert {f"gateway/web/static/{name}" for name in ("index.html", "app.js", "vendor/uPlot.LICENSE")} <= page
    assert page <= gateway.names
    assert "MIT" in gateway.information("licenses/gateway/web/static/vendor/uPlot.LICENSE")


def test_no_byte_code_is_shipped(gateway: Wheel) -> None:
    assert not [name for name in gateway.names if "__pycache__" in name]


def test_the_licence_is_in_the_wheel(gateway: Wheel) -> None:
    assert gateway.metadata()["License-Expression"] == "Apache-2.0"
    assert gateway.information("licenses/LICENSE") == (CHECKOUT / "LICENSE").read_text(encoding="utf-8")


def test_the_readme_is_the_description(gateway: Wheel) -> None:
    assert "# p2p-gateway" in gateway.information("METADATA")


def test_the_commands_are_declared(gateway: Wheel) -> None:
    lines = gateway.information("entry_points.txt").split("\n")
    assert {"p2p-gateway = gateway.cli:main", "p2p-loadgen = loadgen.cli:main"} <= set(lines)


def test_running_it_needs_no_engine(gateway: Wheel) -> None:
    required = [text.lower() for text in gateway.metadata().get_all("Requires-Dist", []) if "extra ==" not in text]
    assert required
    assert not [text for text in required if text.startswith(("vllm", "nixl", "torch"))]


@pytest.mark.parametrize("command", [["gateway", "schema"], ["gateway", "pod-args", "m"], ["loadgen", "--help"]])
def test_the_unpacked_wheel_runs(gateway: Wheel, tmp_path: Path, command: list[str]) -> None:
    ran = _python(gateway, tmp_path, "-m", *command)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout


def test_the_unpacked_wheel_is_what_runs(gateway: Wheel, tmp_path: Path) -> None:
    ran = _python(gateway, tmp_path, "-c", "import gateway, sys; sys.stdout.write(gateway.__file__)")
    assert Path(ran.stdout).is_relative_to(gateway.folder)


def _python(wheel: Wheel, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel in front of the checkout, in a folder that holds neither."""
    environment = {**os.environ, "PYTHONPATH": str(wheel.folder)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=environment)


def test_the_engine_patch_is_a_distribution_of_its_own(engine_patch: Wheel) -> None:
    assert engine_patch.tops() == {"engine_patch"}
    assert modules(CHECKOUT / "engine_patch") <= engine_patch.names
    assert "engine_patch/py.typed" in engine_patch.names


def test_the_engine_patch_ships_neither_its_build_file_nor_byte_code(engine_patch: Wheel) -> None:
    assert {Path(name).suffix for name in engine_patch.names if name.startswith("engine_patch/")} == {".py", ".typed"}


def test_the_engine_patch_requires_nothing(engine_patch: Wheel) -> None:
    assert engine_patch.metadata().get_all("Requires-Dist") is None


def test_the_engine_patch_imports_nothing_of_the_gateway(engine_patch: Wheel) -> None:
    for path in engine_patch.folder.rglob("*.py"):
        assert imported(path.read_text(encoding="utf-8")).isdisjoint(PACKAGES | {"tests"}), path
