"""Callback that writes the heartbeat file, and the marker of a complete fit."""

import os
import time
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.checkpoints.run_folder import note_start
from yolo_lightning.data.batch import Batch
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import HeartbeatWriter, Phase
from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.optional_file import OptionalFile
from yolo_lightning.utils.run_files import FINISHED_FILE, HEARTBEAT_FILE, STARTED


class HeartbeatCheckpointIO(CheckpointIO):
    """Wrapper of `inner` that records the phase `SAVE` while a checkpoint is written."""

    def __init__(self, inner: CheckpointIO, heartbeat: "HeartbeatFile") -> None:
        self.inner, self.heartbeat = inner, heartbeat

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        before = self.heartbeat.writer.phase if self.heartbeat.writer is not None else Phase.SETUP
        self.heartbeat.beat(Phase.SAVE)
        try:
            self.inner.save_checkpoint(checkpoint, path, storage_options)
        finally:
            self.heartbeat.beat(before)

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: str | Path) -> None:
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self.inner.teardown()


class HeartbeatFile(Callback):
    """Writes the heartbeat file in the hooks of the loop, and `finished.json` at the end of a complete fit.

    Must be the first callback, so that the work of other callbacks in a hook belongs to the phase that starts there.
    Each process of a distributed fit has its own file: `heartbeat`, `heartbeat-rank1`, ... With a supervisor, the first
    process writes the file that the supervisor has chosen.

    The callback only writes. A supervised trainer has no timer of its own: a timer inside the process also counts the
    time in which the process was suspended, and ends the process when it resumes. If the supervisor dies, the kernel
    ends the trainer (`end_with_parent`).
    """

    def __init__(self) -> None:
        self.writer: HeartbeatWriter | None = None
        self._owned = False
        self._any_batch = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        folder = Path(trainer.default_root_dir)
        self.writer, self._any_batch = heartbeat.open_from_environment(), False
        if self.writer is None:
            path = folder / f"{HEARTBEAT_FILE}{rank_suffix(trainer.global_rank)}"
            with OptionalFile().attempt(path, "stalls are not detected"):
                folder.mkdir(parents=True, exist_ok=True)
                self.writer, self._owned = HeartbeatWriter(path), True
        if trainer.is_global_zero:
            with OptionalFile().attempt(folder / FINISHED_FILE):
                (folder / FINISHED_FILE).unlink(missing_ok=True)
            with OptionalFile().attempt(folder / STARTED):
                note_start(folder)
        self.beat(Phase.SETUP)
        if not isinstance(trainer.strategy.checkpoint_io, HeartbeatCheckpointIO):
            trainer.strategy.checkpoint_io = HeartbeatCheckpointIO(trainer.strategy.checkpoint_io, self)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.SANITY)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.SETUP)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.FIRST_BATCH, epoch=trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.FETCH if self._any_batch else Phase.FIRST_BATCH, epoch=trainer.current_epoch, batch=0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Record the start of a step; the first step belongs to `FIRST_BATCH`, because it compiles kernels."""
        self._record_samples(batch)
        phase = Phase.STEP if self._any_batch else Phase.FIRST_BATCH
        self.beat(phase, epoch=trainer.current_epoch, step=steps_begun(trainer) - 1, batch=batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._any_batch = True
        self.beat(Phase.FETCH, epoch=trainer.current_epoch, step=steps_begun(trainer), batch=batch_idx + 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._beat_validation(trainer, Phase.VALIDATE)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._record_samples(batch)
        self._beat_validation(trainer, Phase.VALIDATE, batch=batch_idx)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        self._beat_validation(trainer, Phase.VALIDATE, batch=batch_idx + 1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._beat_validation(trainer, Phase.METRICS)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.beat(Phase.EPOCH_END if trainer.is_last_batch else Phase.FETCH)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.EPOCH_END)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the marker of a complete fit. Lightning does not call this hook after an error or a signal."""
        if self.writer is None or not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / FINISHED_FILE
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        report = {"process": os.getpid(), "epochs": trainer.current_epoch, "steps": self.writer.step, "time": moment}
        with OptionalFile().attempt(path, "a supervisor will restart this run once more"):
            write_json(path, report, indent=None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.beat(Phase.EXIT)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the end. The supervisor's file stays open until the end of the process."""
        self.beat(Phase.EXIT)
        if self._owned and self.writer is not None:
            self.writer.close()
            self.writer, self._owned = None, False

    def beat(self, phase: Phase, **position: int) -> None:
        """Record the start of `phase`; see `HeartbeatWriter.beat`."""
        if self.writer is not None:
            self.writer.beat(phase, **position)

    def _beat_validation(self, trainer: Trainer, phase: Phase, **position: int) -> None:
        self.beat(Phase.SANITY if trainer.sanity_checking else phase, **position)

    def _record_samples(self, batch: Any) -> None:
        if self.writer is not None and isinstance(batch, Batch):
            self.writer.samples(batch.image_ids)
