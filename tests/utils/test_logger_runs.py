"""Loggers that continue their runs after a restart, without a training."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger

from yolo_lightning.checkpoints.run_folder import forget_loggers
from yolo_lightning.utils.logger_runs import LoggerRuns
from yolo_lightning.utils.run_files import CHECKPOINTS, LOGGERS

STORE: dict[str, list[tuple[str, int]]] = {}
"""Names and steps of a tracking server, by the identifiers of its runs."""


class StandInLogger(Logger):
    """Logger whose server names the runs; values can only be appended."""

    def __init__(self, project: str = "detector", run_id: str | None = None) -> None:
        super().__init__()
        self._run_id = run_id

    @property
    def name(self) -> str:
        return "stand-in"

    @property
    def version(self) -> str:
        if self._run_id is None:
            self._run_id = f"run{len(STORE)}"
        STORE.setdefault(self._run_id, [])
        return self._run_id

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Store nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        STORE[self.version] += [(name, -1 if step is None else step) for name in metrics]


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.STORE", {})


def process(folder: Path, steps: range, logger_class: type[Logger] = StandInLogger, **options: Any) -> Logger:
    """Log values as a process that trains some steps and is killed."""
    defaults: dict[str, Any] = {"save_dir": folder, "version": None}
    if logger_class is StandInLogger:
        defaults = {"project": "detector", "run_id": None}
    logger = LoggerRuns(folder).create(logger_class, **defaults | options)
    for step in steps:
        logger.log_metrics({"loss": step / 2, "epoch": 0}, step)
        logger.save()
    return logger


def test_run_continues_without_repeated_steps(tmp_path: Path) -> None:
    process(tmp_path, range(5))
    process(tmp_path, range(3, 7))
    assert STORE["run0"] == [(name, step) for step in range(7) for name in ("loss", "epoch")]
    assert len(STORE) == 1


def test_names_are_compared_one_by_one(tmp_path: Path) -> None:
    """A validation that a kill has interrupted is logged at a step whose loss has been logged."""
    process(tmp_path, range(2))
    logger = process(tmp_path, range(0))
    logger.log_metrics({"val/map": 0.5, "epoch": 0}, 1)
    logger.log_metrics({"text": 1.0})
    assert STORE["run0"][-2:] == [("val/map", 1), ("text", -1)]


def test_run_without_values_continues(tmp_path: Path) -> None:
    """Lightning saves at the start of a fit."""
    process(tmp_path, range(0)).save()
    process(tmp_path, range(1))
    assert list(STORE) == ["run0"]


def test_other_options_begin_another_run(tmp_path: Path) -> None:
    process(tmp_path, range(1))
    process(tmp_path, range(1), project="other")
    process(tmp_path, range(1), run_id="given")
    assert list(STORE) == ["run0", "run1", "given"]


def test_record_contains_no_options(tmp_path: Path) -> None:
    process(tmp_path, range(1), project="https://user:secret@host")
    assert "secret" not in (tmp_path / LOGGERS).read_text()


def test_damaged_record_begins_another_run(tmp_path: Path) -> None:
    process(tmp_path, range(1))
    (tmp_path / LOGGERS).write_text(json.dumps({"runs": [1]}))
    process(tmp_path, range(1))
    assert list(STORE) == ["run0", "run1"]


def test_attempt_after_one_without_a_checkpoint_begins_another_run(tmp_path: Path) -> None:
    process(tmp_path, range(1))
    forget_loggers(tmp_path)
    process(tmp_path, range(1))
    assert list(STORE) == ["run0", "run1"]
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / CHECKPOINTS / "step-000000001.ckpt").touch()
    forget_loggers(tmp_path)
    process(tmp_path, range(2))
    assert list(STORE) == ["run0", "run1"]


@pytest.mark.parametrize("incomplete", [False, True])
def test_csv_file_continues(tmp_path: Path, incomplete: bool) -> None:
    process(tmp_path, range(3), CSVLogger)
    (file,) = tmp_path.rglob("metrics.csv")
    if incomplete:
        file.write_bytes(file.read_bytes() + b"0,1")
    logger = process(tmp_path, range(2, 5), CSVLogger)
    logger.log_metrics({"val/map": 0.5}, 4)
    logger.save()
    with file.open(newline="") as content:
        rows = list(csv.DictReader(content))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4", "4"]
    assert [row["loss"] for row in rows] == ["0.0", "0.5", "1.0", "1.5", "2.0", ""]
    assert rows[-1]["val/map"] == "0.5"
    assert list(tmp_path.rglob("metrics.csv")) == [file]
    assert isinstance(logger, CSVLogger)


def test_csv_file_without_a_row_is_written_anew(tmp_path: Path) -> None:
    logger = process(tmp_path, range(0), CSVLogger)
    logger.save()
    (tmp_path / "lightning_logs" / "version_0").mkdir(parents=True, exist_ok=True)
    (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").write_text("epoch,lo")
    process(tmp_path, range(1), CSVLogger)
    (file,) = tmp_path.rglob("metrics.csv")
    assert file.read_text().split() == ["epoch,loss,step", "0,0.0,0"]
