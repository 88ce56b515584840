"""Best and last checkpoints, written atomically."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import (
    NotSavedError,
    link_checkpoint,
    remove_checkpoint,
    superseded,
)
from yolo_lightning.utils.files import remove_leftovers
from yolo_lightning.utils.loop_position import is_last_epoch, steps_begun
from yolo_lightning.utils.run_files import (
    BEST_CHECKPOINT,
    CHECKPOINTS,
    LAST_CHECKPOINT,
    STEP_CHECKPOINT,
    STEP_CHECKPOINTS,
)
from yolo_lightning.utils.stop_signals import request

BEST_SO_FAR = (
    *("best_k_models", "best_model_path", "best_model_score"),
    *("kth_best_model_path", "kth_value", "current_score"),
)
"""What ModelCheckpoint remembers of the checkpoints that it has written."""

FINAL_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each further attempt to write the checkpoint of the last epoch."""

STOP_PAUSES_S = (1.0, 2.0, 4.0)
"""The same after a stop signal: schedulers and the supervisor send SIGKILL 20 to 30 s after SIGTERM."""


@contextmanager
def failing_together(trainer: Trainer) -> Iterator[None]:
    """A block that saves a checkpoint; where the one process that writes fails to, the others learn of it.

    They wait behind the writing, in a barrier that the failure keeps the writer from, and would take for saved what is
    not.

    Raises:
        OSError: In all processes, if the file could not be written.
    """
    failure: OSError | None = None
    try:
        yield
    except OSError as error:
        failure = error
        trainer.strategy.barrier("Trainer.save_checkpoint")
    own = None if failure is None else (failure.errno, failure.strerror)
    told: tuple[int | None, str | None] | None = trainer.strategy.broadcast(own)
    if failure is not None:
        raise failure
    if told is not None:
        raise OSError(*told)


class BestCheckpoint(ModelCheckpoint):
    """Keeps `best.ckpt` in the run folder, chosen at every validation.

    Args:
        monitor: Logged metric that decides.
        mode: Whether more or less of it is better.
    """

    def __init__(self, monitor: str = "val/map_50", mode: Literal["max", "min"] = "max") -> None:
        super().__init__(
            filename=Path(BEST_CHECKPOINT).stem,
            monitor=monitor,
            mode=mode,
            save_top_k=1,
            enable_version_counter=False,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,
        )

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the run folder from the trainer."""
        self.dirpath = str(Path(trainer.default_root_dir) / CHECKPOINTS)
        super().setup(trainer, pl_module, stage)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the best score, also where the run folder has another name now."""
        best = str(Path(self.dirpath or "") / BEST_CHECKPOINT)
        moved: dict[str, Any] = {"dirpath": self.dirpath}
        if state_dict["best_model_path"]:
            score = state_dict["best_model_score"]
            moved |= {"best_model_path": best, "kth_best_model_path": best, "best_k_models": {best: score}}
        super().load_state_dict(state_dict | moved)

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        with failing_together(trainer):
            super()._save_checkpoint(trainer, filepath)

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Lightning notes the score before it writes; where that fails, the file still holds the one before."""
        before = {name: copy(getattr(self, name)) for name in BEST_SO_FAR}
        try:
            super()._update_best_and_save(current, trainer, monitor_candidates)
        except OSError as error:
            vars(self).update(before)
            rank_zero_warn(f"could not save {BEST_CHECKPOINT} ({error.strerror}); training goes on")


class LastCheckpoint(Checkpoint):
    """Saves the whole state of training every N steps, at every epoch's end and on a stop signal; keeps the newest few.

    Nothing is saved on an epoch's last batch: the epoch's end follows, after validation, and a run resumed from a
    checkpoint in between would skip both. Nothing is saved on another exception, as that state may be half a step.
    A full disk does not end the run: the older checkpoint stays, and the next one is tried. The checkpoint of the last
    epoch and the one after a stop signal are tried several times; a fit whose last epoch cannot be saved fails.

    Args:
        interval_steps: Batches between two checkpoints within an epoch; 0 saves at the end of epochs only.
        keep: How many of them are kept besides `last.ckpt`, which is another name of the newest.
    """

    def __init__(self, interval_steps: int = 500, keep: int = 3) -> None:
        if interval_steps < 0:
            raise ValueError(f"interval_steps is {interval_steps}, allowed are 0 and more")
        if keep < 1:
            raise ValueError(f"keep is {keep}, allowed are 1 and more")
        self.interval_steps = interval_steps
        self.keep = keep
        self._failure: OSError | None = None
        """Why the newest checkpoint could not be written, or None."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Clear away what a killed writer left."""
        if stage == "fit" and trainer.is_global_zero:
            for folder in (self._folder(trainer), Path(trainer.default_root_dir)):
                remove_leftovers(folder)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after every `interval_steps` batches of an epoch, but not after its last."""
        if self.interval_steps and (batch_idx + 1) % self.interval_steps == 0 and not trainer.is_last_batch:
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save on a stop signal, which Lightning raises between two batches; an epoch's last batch is saved at its end.

        Several ranks save only if they have agreed on the batch (`StopOnSignal`): otherwise they may have received the
        signal after different batches, and would wait for each other in the save.
        """
        agreed = trainer.world_size == 1 or request.agreed
        if isinstance(exception, SIGTERMException) and trainer.training and not trainer.is_last_batch and agreed:
            self._save(trainer, STOP_PAUSES_S)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after validation and all other work of the epoch's end."""
        is_last = is_last_epoch(trainer) or trainer.should_stop or trainer.global_step == trainer.max_steps
        pauses_s = FINAL_PAUSES_S if is_last else STOP_PAUSES_S if request.number is not None else ()
        self._save(trainer, pauses_s)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse to finish without the last checkpoint.

        Raises:
            NotSavedError: If the last checkpoint could not be written.
        """
        if self._failure is not None:
            raise NotSavedError(self._failure.errno, self._failure.strerror, self._failure.filename)

    def _save(self, trainer: Trainer, pauses_s: Sequence[float] = ()) -> None:
        """Save; after a failure once more after each of `pauses_s`, which must be the same in all ranks."""
        path = self._folder(trainer) / STEP_CHECKPOINT.format(steps=steps_begun(trainer))
        for pause_s in (*pauses_s, None):
            self._failure = self._try_to_save(trainer, path)
            if self._failure is None:
                return
            last = "no further attempt" if pauses_s else "training goes on"
            then = last if pause_s is None else f"next attempt in {pause_s:g} s"
            rank_zero_warn(f"could not save {path} ({self._failure.strerror}); {then}, the older checkpoints stay")
            if pause_s is not None:
                time.sleep(pause_s)

    def _try_to_save(self, trainer: Trainer, path: Path) -> OSError | None:
        folder = path.parent
        try:
            with failing_together(trainer):
                trainer.save_checkpoint(path, weights_only=False)
            if trainer.is_global_zero:
                link_checkpoint(path, folder / LAST_CHECKPOINT)
                for old in superseded(folder.glob(STEP_CHECKPOINTS), path, self.keep):
                    remove_checkpoint(old)
        except OSError as error:
            return error
        return None

    @staticmethod
    def _folder(trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / CHECKPOINTS
