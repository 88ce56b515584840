"""Tells the world outside what training does, and that it has finished."""

import os
import time
from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.checkpoints.run_folder import STARTED, note_start
from yolo_lightning.data.batch import Batch
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import FINISHED_FILE, PROGRESS_FILE, Phase, ProgressWriter
from yolo_lightning.utils.distributed import rank_suffix
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.loop_position import steps_begun


class RecordedCheckpointIO(CheckpointIO):
    """Records the phase `SAVE` while another one writes.

    Args:
        inner: Does the work.
        record: Is told.
    """

    def __init__(self, inner: CheckpointIO, record: "ProgressRecord") -> None:
        self.inner, self.record = inner, record

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """As `inner` does; then the phase is what it was."""
        before = self.record.phase
        self.record.beat(Phase.SAVE)
        try:
            self.inner.save_checkpoint(checkpoint, path, storage_options)
        finally:
            self.record.beat(before)

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As `inner` does."""
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: str | Path) -> None:
        """As `inner` does."""
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        """As `inner` does."""
        self.inner.teardown()


class ProgressRecord(Callback):
    """Writes the progress record from the hooks of the loop, and `finished.json` when the fit is done.

    Must be the first callback: what the others do in a hook then counts to the phase that begins there. Each process of
    a distributed fit has its own record: `progress`, `progress-rank1`, ...

    The callback only writes. A supervised trainer has no timer of its own: a timer inside the process also counts the
    time in which the process was suspended, and ends the process when it resumes. If the supervisor dies, the kernel
    ends the trainer (`end_with_parent`); if the record is lost, the supervisor waits for the longest phase timeout.
    """

    def __init__(self) -> None:
        self._writer: ProgressWriter | None = None
        self._owned = False
        self._any_batch = False

    @property
    def phase(self) -> Phase:
        """The phase recorded last."""
        return self._writer.phase if self._writer is not None else Phase.SETUP

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the supervisor's record, or begin one in the run folder for whoever looks."""
        if stage != "fit":
            return
        folder = Path(trainer.default_root_dir)
        self._writer, self._any_batch = heartbeat.current(), False
        if self._writer is None:
            self._begin_own(folder, trainer.global_rank)
        if trainer.is_global_zero:
            try:
                (folder / FINISHED_FILE).unlink(missing_ok=True)
            except OSError as error:
                rank_zero_warn(f"could not remove {folder / FINISHED_FILE} ({error.strerror})")
            try:
                note_start(folder)
            except OSError as error:
                rank_zero_warn(f"could not write {folder / STARTED} ({error.strerror}); training continues")
        self.beat(Phase.SETUP)
        if not isinstance(trainer.strategy.checkpoint_io, RecordedCheckpointIO):
            trainer.strategy.checkpoint_io = RecordedCheckpointIO(trainer.strategy.checkpoint_io, self)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A few validation batches."""
        self.beat(Phase.SANITY)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The set-up goes on."""
        self.beat(Phase.SETUP)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Workers start, the first batch is awaited."""
        self.beat(Phase.FIRST_BATCH, epoch=trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first batch of the epoch is awaited."""
        self.beat(Phase.FETCH if self._any_batch else Phase.FIRST_BATCH, epoch=trainer.current_epoch, batch=0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch has come; the first step of all belongs to the first batch, as it compiles and tries out."""
        if self._writer is not None and isinstance(batch, Batch):
            self._writer.samples(batch.image_ids)
        phase = Phase.STEP if self._any_batch else Phase.FIRST_BATCH
        self.beat(phase, epoch=trainer.current_epoch, step=steps_begun(trainer) - 1, batch=batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The step is done; the next batch is awaited, or validation follows."""
        self._any_batch = True
        self.beat(Phase.FETCH, epoch=trainer.current_epoch, step=steps_begun(trainer), batch=batch_idx + 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation workers start."""
        self.beat(Phase.SANITY if trainer.sanity_checking else Phase.VALIDATE)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch has come."""
        if self._writer is not None and isinstance(batch, Batch):
            self._writer.samples(batch.image_ids)
        self.beat(Phase.SANITY if trainer.sanity_checking else Phase.VALIDATE, batch=batch_idx)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch is done."""
        self.beat(Phase.SANITY if trainer.sanity_checking else Phase.VALIDATE, batch=batch_idx + 1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All batches are there to be scored."""
        self.beat(Phase.SANITY if trainer.sanity_checking else Phase.METRICS)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scored; the next batch is awaited, or the epoch ends."""
        if not trainer.sanity_checking:
            self.beat(Phase.EPOCH_END if trainer.is_last_batch else Phase.FETCH)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checkpoints follow."""
        self.beat(Phase.EPOCH_END)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All that was asked for is trained: say so. A fit that an error or a signal ends does not come here."""
        if self._writer is None or not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / FINISHED_FILE
        report = {
            "process": os.getpid(),
            "epochs": trainer.current_epoch,
            "steps": self._writer.step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        try:
            write_json(path, report, indent=None)
        except OSError as error:
            rank_zero_warn(f"could not write {path} ({error.strerror}); a supervisor will start this run once more")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The process ends."""
        self.beat(Phase.EXIT)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """The process ends. The record that a supervisor reads stays open to the very end; an own record is closed."""
        self.beat(Phase.EXIT)
        if self._owned and self._writer is not None:
            self._writer.close()
            self._writer, self._owned = None, False

    def beat(self, phase: Phase, epoch: int | None = None, step: int | None = None, batch: int | None = None) -> None:
        """Record that `phase` begins; see `ProgressWriter.beat`."""
        if self._writer is not None:
            self._writer.beat(phase, epoch, step, batch)

    def _begin_own(self, folder: Path, rank: int) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer, self._owned = ProgressWriter(folder / f"{PROGRESS_FILE}{rank_suffix(rank)}"), True
        except OSError as error:  # nobody watches, so nobody is misled
            rank_zero_warn(f"no progress record in {folder} ({error.strerror})")
