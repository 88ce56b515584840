import sys
from pathlib import Path

import pytest

from yolo_lightning.cli import main
from yolo_lightning.utils.run_files import REPORT

METRICS = "epoch,step,time_s,train/loss\n0,10,9.0,3.0\n0,20,19.0,2.0\n"


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["yolo_lightning"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.csv").write_text(METRICS)
    return tmp_path / "run"


def test_report_lands_in_the_run_folder(run_folder: Path) -> None:
    main(["report", str(run_folder)])
    assert (run_folder / REPORT).read_text().startswith("<!DOCTYPE html>")


def test_report_lands_where_it_is_wanted(run_folder: Path, tmp_path: Path) -> None:
    main(["report", str(run_folder), "--output", str(tmp_path / "there" / "a.html")])
    assert (tmp_path / "there" / "a.html").is_file()
    assert not (run_folder / REPORT).exists()


def test_tilde_is_the_home_folder(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    main(["report", "~/run", "--output=~/there/a.html"])
    assert (tmp_path / "there" / "a.html").is_file()
    assert not list(Path().iterdir())


@pytest.mark.parametrize("words", [["nowhere"], [".", "--output", "run/metrics.csv/a.html"]])
def test_what_cannot_be_is_a_message(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(run_folder.parent)
    folder = "run" if words[0] == "." else words[0]
    with pytest.raises(SystemExit):
        main(["report", folder, *words[1:]])
    assert "error: " in capsys.readouterr().err


def test_damaged_files_are_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "environment.json").write_text("{")
    main(["report", str(run_folder)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("MB)")
    assert second.startswith("damaged: environment.json cannot be read:")
