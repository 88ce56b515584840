"""Callback that writes the heartbeat file of a run folder, and the marker of a complete fit."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from yolo_lightning.callbacks.finish_by import deadline_schedule
from yolo_lightning.callbacks.heartbeat_callback import HeartbeatCallback
from yolo_lightning.checkpoints.run_folder import note_start
from yolo_lightning.data.batch import Batch
from yolo_lightning.supervision.heartbeat import HeartbeatWriter
from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import FINISHED_FILE, HEARTBEAT_FILE, RANKS, STARTED, TRAINED_FILE


class HeartbeatFile(HeartbeatCallback):
    """Writes the heartbeat file in the hooks of the loop, and `finished.json` at the end of a complete fit.

    Each process of a distributed fit has its own file: `heartbeat`, `heartbeat-rank1`, ... With a supervisor, the first
    process writes the file that the supervisor has chosen.

    The command line sets `marker` to `trained.json`, because further work of the run follows the fit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.marker = FINISHED_FILE
        self._is_writer_owned = False

    def _open(self, trainer: Trainer) -> HeartbeatWriter | None:
        folder = Path(trainer.default_root_dir)
        writer = super()._open(trainer)
        if writer is None:
            path = folder / f"{HEARTBEAT_FILE}{rank_suffix(trainer.global_rank)}"
            with OptionalFile().attempt(path, "stalls are not detected"):
                folder.mkdir(parents=True, exist_ok=True)
                writer = HeartbeatWriter(path)
                self._is_writer_owned = True
        if trainer.is_global_zero:
            shutil.rmtree(folder / RANKS, ignore_errors=True)  # of an earlier start, possibly with more ranks
            with OptionalFile().attempt(folder / FINISHED_FILE):
                (folder / FINISHED_FILE).unlink(missing_ok=True)
            with OptionalFile().attempt(folder / STARTED):
                note_start(folder)
        return writer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the marker of an earlier end; the hook is not called if no step is left to train."""
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            with OptionalFile().attempt(TRAINED_FILE):
                (Path(trainer.default_root_dir) / TRAINED_FILE).unlink(missing_ok=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the marker of a complete fit. Lightning does not call this hook after an error or a signal."""
        if self.writer is None or not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / self.marker
        if path.is_file():  # no step was left to train
            return
        report = {
            "process": os.getpid(),
            "epochs": trainer.current_epoch,
            "steps": self.writer.step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "max_epochs": trainer.max_epochs,
        }
        schedule = deadline_schedule(trainer)
        if schedule is not None:
            report |= {"began_s": schedule.began_s, "deadline_s": schedule.deadline_s}
        with OptionalFile().attempt(path, "a supervisor will restart this run once more"):
            write_json(path, report, indent=None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the end, and close the file unless it is the supervisor's."""
        super().teardown(trainer, pl_module, stage)
        if self._is_writer_owned and self.writer is not None:
            self.writer.close()
            self.writer = None
            self._is_writer_owned = False

    def _record_samples(self, batch: Any) -> None:
        if self.writer is not None and isinstance(batch, Batch):
            self.writer.samples(batch.image_ids)
