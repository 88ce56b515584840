"""`metrics.csv`: a row for each logged step and each validation."""

import csv
import math
from io import StringIO
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from yolo_lightning.callbacks.fit_timer import TimedCallback
from yolo_lightning.utils.activity import number_from_device
from yolo_lightning.utils.choices import check_state
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.loop_position import begins_anew, is_validation_of_fit, steps_begun
from yolo_lightning.utils.optional_file import FINAL_PAUSES_S, OptionalFile, attempts
from yolo_lightning.utils.regular_files import open_regular, read_regular
from yolo_lightning.utils.run_files import METRICS

FIXED_COLUMNS = ("epoch", "step", "time_s")
"""First columns of `metrics.csv`."""


class MetricsFile(TimedCallback):
    """Writes `metrics.csv` in the run folder: rows of training metrics, and one row per validation.

    Training metrics are written after every `log_every_n_steps`-th batch since training began and after the last batch
    of every epoch; `log_every_n_steps` 0 disables them. `step` counts batches since training began, `time_s` is the
    training time in seconds over all restarts. After a resume, rows behind the resumed step are dropped, because those
    steps are trained again. Rows that could not be written are part of a checkpoint: the process can end before the
    disk accepts them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._row_step = 0
        """Step of the last row of training metrics, or of the resumed checkpoint."""
        self._file = OptionalFile()
        self._unwritten: list[dict[str, Any]] = []
        self._rewritten_up_to: float | None = None
        """If set, the next write keeps the rows up to this step and rewrites the file instead of appending."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if begins_anew(trainer, stage):
            self._steps = 0
            self._unwritten = []

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "unwritten": list(self._unwritten)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_state(self, state_dict, self.state_dict())
        self._steps = state_dict["steps"]
        self._unwritten = list(state_dict["unwritten"])
        self._rewritten_up_to = math.inf  # a part of these rows may have been written after the checkpoint

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the rows behind the resumed step, and an incomplete last row."""
        self._row_step = self._steps
        self._rewritten_up_to = self._steps
        if self._unwritten or (Path(trainer.default_root_dir) / METRICS).is_file():
            self._flush(trainer)

    @rank_zero_only
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._steps = steps_begun(trainer)
        interval = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if interval and (self._steps % interval == 0 or trainer.is_last_batch):
            self._write(trainer, ("train/", "lr/"))

    @rank_zero_only
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the training metrics of an epoch that `max_steps` ended before its last batch."""
        if trainer.log_every_n_steps and self._row_step < self._steps:  # type: ignore[attr-defined]
            self._write(trainer, ("train/", "lr/"))

    @rank_zero_only
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_validation_of_fit(trainer):
            self._write(trainer, ("val/",))

    @rank_zero_only
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the rows that could not be written before, also if a resumed training was complete already."""
        for _ in attempts(FINAL_PAUSES_S):
            if self._unwritten:
                self._flush(trainer)
            if not self._unwritten:
                return

    def _write(self, trainer: Trainer, prefixes: tuple[str, ...]) -> None:
        if "train/" in prefixes:
            self._row_step = self._steps
        row = {"epoch": trainer.current_epoch, "step": self._steps, "time_s": f"{self.timer.trained_s():.1f}"}
        metrics = trainer.callback_metrics.items()
        row |= {name: f"{number_from_device(value):.6g}" for name, value in metrics if name.startswith(prefixes)}
        self._unwritten.append(row)
        self._flush(trainer)

    def _flush(self, trainer: Trainer) -> None:
        path = Path(trainer.default_root_dir) / METRICS
        with self._file.attempt(path):
            if self._rewritten_up_to is None:
                append_rows(path, self._unwritten)
            else:
                earlier_rows = read_rows(path, self._rewritten_up_to)
                write_rows(path, [*earlier_rows, *_missing(self._unwritten, earlier_rows)])
            self._unwritten = []
            self._rewritten_up_to = None
        if self._file.failed and self._rewritten_up_to is None:  # the last row may be incomplete
            self._rewritten_up_to = math.inf


def read_rows(path: Path, up_to: float = math.inf) -> list[dict[str, str]]:
    """Return the rows of a metrics file up to a step, without an incomplete last row; none if the file is missing."""
    if not path.is_file():
        return []
    with StringIO(read_regular(path).decode(errors="replace"), newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values() and row["step"].isdigit()]
    return [row for row in rows if int(row["step"]) <= up_to]


def _missing(rows: list[dict[str, Any]], written_rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the rows that are not among `written_rows`, whose cells are strings, empty without a value."""
    written = [{name: cell for name, cell in row.items() if cell} for row in written_rows]
    return [row for row in rows if {name: str(cell) for name, cell in row.items()} not in written]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file; columns are in order of appearance."""
    columns = dict.fromkeys([*FIXED_COLUMNS, *(name for row in rows for name in row)])
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def append_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows, or replace the file if they have a new column."""
    columns: list[str] = []
    if path.is_file():
        with open_regular(path) as file:
            columns = next(csv.reader([file.readline(1 << 20).decode(errors="replace")]), [])
    if any(not row.keys() <= set(columns) for row in rows):
        write_rows(path, [*read_rows(path), *rows])
        return
    with path.open("a", newline="") as file:
        csv.DictWriter(file, columns).writerows(rows)
