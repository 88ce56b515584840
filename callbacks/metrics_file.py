"""One CSV file of everything logged, without gap or double row across restarts."""

import csv
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import METRICS

FIXED_COLUMNS = ("epoch", "step", "time_s")


class MetricsFile(Callback):
    """Writes `metrics.csv` in the run folder: rows of training metrics, and one row per validation.

    Training metrics are written after every `log_every_n_steps`-th batch since training began and after the last batch
    of every epoch; with `log_every_n_steps` 0 they are not written. `step` counts batches since training began,
    `time_s` seconds of training over all restarts. On resume, rows after the resumed step are dropped, since those
    steps are trained again.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._row_step = 0
        """Step of the last row of training metrics, or of the checkpoint that the fit was resumed from."""
        self._trained_s = 0.0
        self._started_s: float | None = None
        self._file = OptionalFile()
        self._unwritten: list[dict[str, Any]] = []
        """Rows that wait for the disk to have space again."""
        self._cut_back_to: int | None = None
        """Step after which the rows of the file must still be dropped, or None."""

    def state_dict(self) -> dict[str, Any]:
        """Batches and seconds trained so far."""
        return {"steps": self._steps, "trained_s": self._elapsed_s()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue both counts."""
        self._steps = state_dict["steps"]
        self._trained_s = state_dict["trained_s"]

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Cut the file back to the step that training continues from."""
        self._started_s = time.monotonic()
        path = self._path(trainer)
        kept = rows_up_to(path, self._steps)
        self._row_step = self._steps
        with self._file.attempt(path):
            if path.is_file():
                write_rows(path, kept)  # always: a torn last line must not stay for the next row to be glued to
        self._cut_back_to = self._steps if self._file.failed else None

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the training metrics of every `log_every_n_steps`-th batch, and of the last batch of an epoch."""
        self._steps = steps_begun(trainer)
        interval = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if interval and (self._steps % interval == 0 or trainer.is_last_batch):
            self._write_training(trainer)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the training metrics of an epoch that `max_steps` ended before its last batch."""
        if trainer.log_every_n_steps and self._row_step < self._steps:  # type: ignore[attr-defined]
            self._write_training(trainer)

    @rank_zero_only
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the validation metrics."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            self._write(trainer, ("val/",))

    def _write_training(self, trainer: Trainer) -> None:
        self._row_step = self._steps
        self._write(trainer, ("train/", "lr/"))

    def _write(self, trainer: Trainer, prefixes: tuple[str, ...]) -> None:
        row: dict[str, Any] = {
            "epoch": trainer.current_epoch,
            "step": self._steps,
            "time_s": f"{self._elapsed_s():.1f}",
        }
        row |= {
            name: f"{float(value):.6g}" for name, value in trainer.callback_metrics.items() if name.startswith(prefixes)
        }
        path = self._path(trainer)
        self._unwritten.append(row)
        with self._file.attempt(path):
            if self._cut_back_to is not None:
                write_rows(path, [*rows_up_to(path, self._cut_back_to), *self._unwritten])
            elif len(self._unwritten) > 1:  # what was last written may be half a line
                write_rows(path, [*read_rows(path), *self._unwritten])
            else:
                append_row(path, row)
            self._unwritten, self._cut_back_to = [], None

    def _elapsed_s(self) -> float:
        return self._trained_s + (0.0 if self._started_s is None else time.monotonic() - self._started_s)

    @staticmethod
    def _path(trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / METRICS


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a metrics file; none if it is missing. A last line torn by a kill is left out."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values() and row["step"].isdigit()]


def rows_up_to(path: Path, step: int) -> list[dict[str, str]]:
    """Return the rows of a metrics file that were written up to `step`."""
    return [row for row in read_rows(path) if int(row["step"]) <= step]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the file anew, columns in order of appearance."""
    columns = list(FIXED_COLUMNS) + [name for row in rows for name in row if name not in FIXED_COLUMNS]
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(columns)))
        writer.writeheader()
        writer.writerows(rows)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row; the file is written anew when the row brings a new column."""
    columns: list[str] = []
    if path.is_file():
        with path.open(newline="") as file:
            columns = next(csv.reader(file), [])
    if not set(row) <= set(columns):
        write_rows(path, [*read_rows(path), row])
        return
    with path.open("a", newline="") as file:
        csv.DictWriter(file, columns).writerow(row)
