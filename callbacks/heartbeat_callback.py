"""Heartbeat of a Lightning Trainer for the supervisor."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.utilities.exceptions import SIGTERMException

from yolo_lightning.errors import UserError
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.failure_record import record_own_failure
from yolo_lightning.supervision.heartbeat import HeartbeatWriter, Phase
from yolo_lightning.utils.accelerator import synchronize
from yolo_lightning.utils.activity import Activity, during, enter
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.trainer_callbacks import callbacks_of

NO_FAILURES = (KeyboardInterrupt, SystemExit, SIGTERMException)
"""Exceptions of a stop signal."""


class HeartbeatCheckpointIO(CheckpointIO):
    """Wrapper of `inner` that records the phase `SAVE` while a checkpoint is written."""

    def __init__(self, inner: CheckpointIO, heartbeat: "HeartbeatCallback", device: torch.device) -> None:
        self.inner = inner
        self.heartbeat = heartbeat
        self.device = device

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        earlier_phase = Phase.SETUP if self.heartbeat.writer is None else self.heartbeat.writer.phase
        self.heartbeat.beat(Phase.SAVE)
        synchronize(self.device)  # so that a device that hangs does not look like a disk that hangs
        try:
            self.inner.save_checkpoint(checkpoint, path, storage_options)
        except BaseException:
            self.heartbeat.beat(earlier_phase)
            enter(Activity.WRITE)  # the record of the exception names the activity in which it was raised
            raise
        self.heartbeat.beat(earlier_phase)

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: str | Path) -> None:
        with during(Activity.WRITE):
            self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self.inner.teardown()


class HeartbeatCallback(Callback):
    """Reports each phase of a fit to the supervisor: start-up, batches, steps, validation, checkpoints.

    For any LightningModule under `yolo_lightning supervise -- python train.py`; without a supervisor it does nothing.
    Must be the first callback, so that the work of other callbacks in a hook belongs to the phase that starts there.

    The callback only writes. A supervised trainer has no timer of its own: a timer inside the process also counts the
    time in which the process was suspended, and ends the process when it resumes. If the supervisor dies, the kernel
    ends the trainer (`end_with_parent`).
    """

    def __init__(self) -> None:
        self.writer: HeartbeatWriter | None = None
        self._any_batch = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        tuners = (BatchSizeFinder, LearningRateFinder)  # Lightning puts them in front
        first = next(callback for callback in callbacks_of(trainer, Callback) if not isinstance(callback, tuners))
        if not isinstance(first, HeartbeatCallback):
            name = type(self).__name__
            raise UserError(f"{name} must be the first of trainer.callbacks, got {type(first).__name__} before it")
        self.writer = self._open(trainer)
        self._any_batch = False
        self.beat(Phase.SETUP)
        checkpoint_io = trainer.strategy.checkpoint_io
        if self.writer is not None and not isinstance(checkpoint_io, HeartbeatCheckpointIO):
            trainer.strategy.checkpoint_io = HeartbeatCheckpointIO(checkpoint_io, self, trainer.strategy.root_device)

    def _open(self, trainer: Trainer) -> HeartbeatWriter | None:
        return heartbeat.open_from_environment()

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.beat(Phase.FIRST_BATCH)

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

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write the failure record. As the first callback, before anything is torn down, which can hang."""
        if not isinstance(exception, NO_FAILURES):
            record_own_failure(exception, rank=trainer.global_rank, has_trained=trainer.global_step > 0)
        self.beat(Phase.EXIT)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Record the end. The supervisor's file stays open until the end of the process."""
        self.beat(Phase.EXIT)

    def beat(self, phase: Phase, **position: int) -> None:
        """Record the start of `phase`; see `HeartbeatWriter.beat`."""
        if self.writer is not None:
            self.writer.beat(phase, **position)

    def _beat_validation(self, trainer: Trainer, phase: Phase, **position: int) -> None:
        self.beat(Phase.FIRST_BATCH if trainer.sanity_checking else phase, **position)

    def _record_samples(self, batch: Any) -> None:
        """Record the ids of the samples of a batch; here none, because a batch can be of any type."""
