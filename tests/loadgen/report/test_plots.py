import sys
from pathlib import Path

import pytest

from loadgen.report.compare import Row, compare
from loadgen.report.plots import Missing, plot
from loadgen.report.record import line
from tests.loadgen.report.records import failure, record


def made(folder: Path) -> list[Row]:
    rows = []
    for arm, ttft in (("a", 100.0), ("b", 50.0)):
        file = folder / f"{arm}.jsonl"
        file.write_bytes(b"".join(line(record(number, ttft_ms=ttft + number)) for number in range(9)) + line(failure()))
        for seed in range(3):
            figures = {"mean_ttft_ms": ttft + seed, "completed": 9}
            rows.append(Row(scenario="s", arm=arm, seed=seed, figures=figures, records=file))
    return rows


@pytest.mark.parametrize(("name", "magic"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_ratios_and_distributions_are_drawn(tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    rows = made(tmp_path)
    plot(tmp_path / name, rows, compare(rows))
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_without_records_only_ratios_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = made(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.jsonl").unlink()
    plot(tmp_path / "out.svg", rows, compare(rows))
    assert "TTFT" not in (tmp_path / "out.svg").read_text()


def test_who_has_no_matplotlib_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    rows = made(tmp_path)
    with pytest.raises(Missing, match=r"p2p-gateway\[report\]"):
        plot(tmp_path / "out.png", rows, compare(rows))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.png, \.svg"):
        plot(tmp_path / "out.bmp", made(tmp_path), [])
