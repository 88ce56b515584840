"""`results.csv`: one row per epoch with the columns of Ultralytics."""

import csv
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import RESULTS

LOSSES = ("box_loss", "cls_loss", "dfl_loss", "l1_loss")
"""All losses; the third one of a network is `dfl_loss`, or `l1_loss` if its boxes have no distribution (yolo26)."""
SCORES = {
    "metrics/precision(B)": "val/precision",
    "metrics/recall(B)": "val/recall",
    "metrics/mAP50(B)": "val/ultralytics_map_50",
    "metrics/mAP50-95(B)": "val/ultralytics_map",
}
"""Scores of `MeanAP` by Ultralytics' column names."""

RATES = {"lr/pg0": "lr/weight", "lr/pg1": "lr/normalisation", "lr/pg2": "lr/bias"}
"""Learning rates by Ultralytics' numbers of the parameter groups, from `BaseTrainer.build_optimizer`."""

VALIDATED = {**SCORES, **{f"val/{name}": f"val/{name}" for name in LOSSES}}
RESULTS_COLUMNS = ("epoch", "time", *(f"train/{name}" for name in LOSSES), *VALIDATED, *RATES)
"""Columns of Ultralytics 8.4.190 for detection; a file has those of the losses of its network."""


class ResultsFile(Callback):
    """Writes `results.csv` in the run folder: one row per epoch, with the columns of Ultralytics' file of that name.

    `epoch` counts from 1, `time` is the training time in seconds over all restarts. Training losses are means over the
    batches of the epoch with a finite loss in the first rank, learning rates are those of the last batch. Validation
    columns are empty in an epoch without validation. After a resume the file contains the rows of the checkpoint.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}
        """Rows by epoch, from 1."""
        self._sums: dict[str, Tensor] = {}
        self._batches: dict[str, Tensor] = {}
        self._trained_s = 0.0
        self._started_s: float | None = None
        self._file = OptionalFile()

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": {epoch: dict(row) for epoch, row in self._rows.items()},
            "sums": {name: float(value) for name, value in self._sums.items()},
            "batches": {name: int(count) for name, count in self._batches.items()},
            "trained_s": self._elapsed_s(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._rows = {int(epoch): dict(row) for epoch, row in state_dict["rows"].items()}
        self._sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in state_dict["sums"].items()}
        self._batches = {name: torch.tensor(count) for name, count in state_dict["batches"].items()}
        self._trained_s = state_dict["trained_s"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the rows of the checkpoint, or delete the file of another run."""
        self._started_s = time.monotonic()
        self._write(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Sum the losses on their device, without a synchronization."""
        for name in LOSSES:
            if (loss := trainer.callback_metrics.get(f"train/{name}")) is None:
                continue
            is_finite = loss.isfinite()
            value, count = torch.where(is_finite, loss, 0.0).double(), is_finite.long()
            self._sums[name] = value + self._sums.get(name, torch.zeros_like(value)).to(value.device)
            self._batches[name] = count + self._batches.get(name, torch.zeros_like(count)).to(value.device)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the scores, so that a checkpoint of this validation contains them."""
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            known = trainer.callback_metrics
            scores = {column: float(known[name]) for column, name in VALIDATED.items() if name in known}
            unknown = {column: 0.0 for column in SCORES if scores.get(column, 0.0) < 0}  # no targets: as in Ultralytics
            self._row(trainer).update(scores | unknown)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        row = self._row(trainer)
        row["time"] = self._elapsed_s()
        for name, total in self._sums.items():
            if count := int(self._batches[name]):
                row[f"train/{name}"] = float(total) / count
        known = trainer.callback_metrics
        row.update({column: float(known[name]) for column, name in RATES.items() if name in known})
        self._sums, self._batches = {}, {}
        self._write(trainer)

    def row(self, epoch: int) -> dict[str, float]:
        """Return the values of a finished epoch, from 1, by column; empty if there are none."""
        return dict(self._rows.get(epoch, {}))

    def _row(self, trainer: Trainer) -> dict[str, float]:
        return self._rows.setdefault(trainer.current_epoch + 1, {})

    def _elapsed_s(self) -> float:
        return self._trained_s + (0.0 if self._started_s is None else time.monotonic() - self._started_s)

    @rank_zero_only
    def _write(self, trainer: Trainer) -> None:
        path = Path(trainer.default_root_dir) / RESULTS
        finished = {epoch: row for epoch, row in sorted(self._rows.items()) if "time" in row}
        with self._file.attempt(path, "it is tried again after the next epoch"):
            if finished:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary, temporary.open("w", newline="") as file:
                    unused = "dfl_loss" if any("train/l1_loss" in row for row in finished.values()) else "l1_loss"
                    columns = [name for name in RESULTS_COLUMNS if not name.endswith(unused)]
                    writer = csv.DictWriter(file, columns, lineterminator="\n")
                    writer.writeheader()
                    for epoch, row in finished.items():  # six digits, as in Ultralytics' file
                        writer.writerow({"epoch": epoch, **{name: f"{value:.6g}" for name, value in row.items()}})
            else:
                path.unlink(missing_ok=True)
