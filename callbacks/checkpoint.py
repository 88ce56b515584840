"""Checkpoints during a fit: the best, the newest, and those of whole epochs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Checkpoint,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import NotSavedError, link_checkpoint, remove_checkpoint, superseded
from yolo_lightning.checkpoints.run_folder import configured_folder
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.unsaved_checkpoint import forget_unsaved, note_unsaved
from yolo_lightning.training.accumulation import restore_gradients, unscaled_gradients
from yolo_lightning.training.finetuning_state import frozen_parts, restore_frozen_parts
from yolo_lightning.training.logged_values import LoggedValues
from yolo_lightning.utils import run_files
from yolo_lightning.utils.activity import Activity, current, during, number_from_device
from yolo_lightning.utils.choices import check_state, checked_arguments
from yolo_lightning.utils.loop_position import (
    align_reloads,
    begin_next_epoch,
    begins_anew,
    early_stop,
    ends_within_epoch,
    has_deferred_stop,
    is_accumulating,
    is_last_epoch,
    is_validation_of_fit,
    is_within_epoch,
    omits_epoch_start,
    place_loader_sources,
    requested_epochs,
    set_requested_epochs,
    steps_begun,
)
from yolo_lightning.utils.optional_file import FINAL_PAUSES_S, attempts
from yolo_lightning.utils.stop_signals import request
from yolo_lightning.utils.suspect_checkpoints import trusted_steps
from yolo_lightning.utils.trainer_callbacks import callback_before, callbacks_of

LOOP_STATE = "loop_state"  # checkpoint key of the state of the loop that `LastCheckpoint` adds

STOP_PAUSES_S = (1.0, 2.0, 4.0)
"""Seconds before each further attempt after a stop signal: schedulers and the supervisor send SIGKILL after 20 s."""

INEXACT_CALLBACKS = (BatchSizeFinder, LearningRateFinder, ModelPruning)

OF_BEST = ("best_model_path", "best_model_score", "best_k_models", "kth_best_model_path", "kth_value")
"""Keys in the state of a `ModelCheckpoint` that describe its best checkpoint."""

OF_SAVES = (*OF_BEST, "current_score", "last_model_path", "_last_global_step_saved", "_last_checkpoint_saved")
"""Attributes of a `ModelCheckpoint` that depend on what it has saved."""


def _checkpoint_folder(trainer: Trainer) -> Path:
    if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
        raise UserError(
            "trainer.plugins must not contain AsyncCheckpointIO, because the callbacks for checkpoints link, count and "
            "mirror a file as soon as it is saved: use AtomicCheckpointIO() itself"
        )
    return configured_folder(str(trainer.default_root_dir)) / run_files.CHECKPOINTS


def _warn_of_earlier_checkpoints(folder: Path) -> None:
    """Warn of a fit that does not resume and replaces the checkpoints in its folder."""
    earlier = sorted(folder.glob(run_files.STEP_CHECKPOINTS))
    if earlier:
        rank_zero_warn(
            f"{folder} contains {earlier[-1].name} of an earlier fit, but this fit begins at step 0 and replaces it. "
            f"To resume, call Trainer.fit with ckpt_path=latest_checkpoint({str(folder.parent)!r}); ckpt_path='last' "
            "finds checkpoints of ModelCheckpoint only"
        )


def _warn_of_omitted_hooks(trainer: Trainer, module: LightningModule) -> None:
    """Warn of hooks of the user that Lightning does not call for a step or an epoch that is resumed.

    It calls `on_train_batch_end` of the module after that of the callbacks, and so after a checkpoint of the batch.
    """
    callbacks: list[Any] = callbacks_of(trainer, Callback)
    owners = {"on_train_epoch_start": [module, *callbacks], "on_train_batch_end": [module]}
    names = []
    for hook, parts in owners.items():
        for part in parts:
            function = getattr(part, hook)  # of a `LambdaCallback`, an attribute of the object
            if not function.__module__.startswith(("lightning.", "yolo_lightning.")):
                names.append(getattr(function, "__qualname__", hook))  # a `functools.partial` has no name
    if names:
        rank_zero_warn(
            f"Lightning does not call {' and '.join(names)} for the epoch and the batch in which the fit resumes: what "
            "these hooks set is resumed only as far as a state_dict contains it"
        )


def _warn_of_inexact_callbacks(trainer: Trainer) -> None:
    """Warn of callbacks of Lightning that act again when a fit resumes, or do not restore what they have changed."""
    names = [type(callback).__name__ for callback in callbacks_of(trainer, *INEXACT_CALLBACKS)]
    if names:
        rank_zero_warn(
            f"{' and '.join(names)} of Lightning search again when a fit resumes, or do not restore what they have "
            "changed: the resumed fit differs from one without interruption"
        )
    if callbacks_of(trainer, StochasticWeightAveraging) and is_within_epoch(trainer):
        rank_zero_warn(
            "StochasticWeightAveraging sets the learning rate again when a fit resumes within an epoch: until the "
            "next epoch, the learning rate differs from that of a fit without interruption while it is annealed. "
            "WeightAveraging of Lightning resumes exactly"
        )


def _saved_gradients(trainer: Trainer, module: LightningModule) -> dict[str, Tensor]:
    """Return the gradients that no optimizer step has used yet, as means over the ranks; a collective call."""
    is_complete = module.automatic_optimization and not is_accumulating(trainer)
    if is_complete or getattr(module, "saves_gradients", False):
        return {}
    gradients = unscaled_gradients(module, trainer.scaler)
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        if gradients:
            name = type(trainer.strategy).__name__
            rank_zero_warn(f"gradients of an incomplete accumulation are not saved with {name}")
        return {}
    if trainer.world_size == 1:
        return gradients
    return {name: trainer.strategy.reduce(gradient, reduce_op="mean") for name, gradient in gradients.items()}


def _place_after_other_checkpoints(callback: Checkpoint, trainer: Trainer) -> None:
    """Let Lightning call a callback of this file after all checkpoint callbacks of the user.

    Their best checkpoints of a step or an epoch would otherwise be missing in the checkpoint of this step or epoch.
    """
    callbacks = callbacks_of(trainer, Callback)
    position = callbacks.index(callback)
    later = callbacks[position + 1 :]
    own_classes = (BestCheckpoint, EpochCheckpoint, LastCheckpoint)
    others = [other for other in later if isinstance(other, Checkpoint) and not isinstance(other, own_classes)]
    if others:
        remaining = [other for other in later if other not in others]
        # A new list, because Lightning iterates over the present one.
        trainer.callbacks = [*callbacks[:position], *others, callback, *remaining]  # type: ignore[attr-defined]


@contextmanager
def _failing_together(trainer: Trainer) -> Iterator[None]:
    """Raise an OSError of the block, in which the first rank writes a checkpoint, in all ranks.

    The other ranks wait in a barrier at the end of `save_checkpoint`, which the first rank does not reach on an error.
    """
    failure: OSError | None = None
    activity = current() if trainer.is_global_zero else Activity.EXCHANGE
    try:
        with during(activity):
            yield
    except OSError as error:
        failure = error
        trainer.strategy.barrier("Trainer.save_checkpoint")
    problem = None if failure is None else (failure.errno, failure.strerror)
    problem_of_first_rank: tuple[int | None, str | None] | None = trainer.strategy.broadcast(problem)
    if failure is not None:
        raise failure
    if problem_of_first_rank is not None:
        raise OSError(*problem_of_first_rank)


class BestCheckpoint(ModelCheckpoint):
    """Saves `best.ckpt` in the run folder when a validation improves the monitored metric.

    A checkpoint that a full disk rejects stays in memory, and is written at the end of an epoch or before the process
    ends; a fit that cannot write it fails. After the death of the process, the scores of the older file count again.

    Args:
        monitor: Logged metric.
        mode: Whether a larger (`max`) or smaller (`min`) value is better.
        window: Number of validations, >= 1, whose mean is compared: the newest one and those before it. A score that
            is high by chance in one epoch is selected less often with a window of 3 or 5.
    """

    @checked_arguments(window=">= 1")
    def __init__(self, monitor: str = "val/map_50", mode: Literal["max", "min"] = "max", window: int = 1) -> None:
        if not monitor.strip():
            raise UserError(f"BestCheckpoint.monitor must be the name of a logged metric, got {monitor!r}")
        self.window = window
        self.recent: list[float] = []  # values of the newest validations, oldest first
        self._unsaved: dict[str, Any] | None = None  # complete checkpoint on the CPU that could not be written
        self._written: dict[str, Any] = {}  # state with the score of the file, while there is an unsaved checkpoint
        super().__init__(
            filename=Path(run_files.BEST_CHECKPOINT).stem,
            monitor=monitor,
            mode=mode,
            save_top_k=1,
            enable_version_counter=False,
            auto_insert_metric_name=False,
            save_on_train_epoch_end=False,
        )
        self._initial = {name: copy(getattr(self, name)) for name in OF_SAVES}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if begins_anew(trainer, stage):
            self.recent = []
            self._unsaved = None
            self._written = {}
            for name, value in self._initial.items():
                setattr(self, name, copy(value))
        self.dirpath = str(_checkpoint_folder(trainer))
        super().setup(trainer, pl_module, stage)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_validation_of_fit(trainer) and self.monitor in trainer.callback_metrics:
            self.recent = [*self.recent, number_from_device(trainer.callback_metrics[self.monitor])][-self.window :]
        super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self._save_again(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        super().on_exception(trainer, pl_module, exception)
        if isinstance(exception, SIGTERMException) and (trainer.world_size == 1 or request.agreed):
            self._save_again(trainer, STOP_PAUSES_S)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise a NotSavedError if the best checkpoint could not be written."""
        super().on_train_end(trainer, pl_module)
        failure = self._save_again(trainer, FINAL_PAUSES_S)
        if failure is not None:
            raise NotSavedError(failure.errno, failure.strerror, failure.filename)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() if self._unsaved is None else self._written
        return state | {"recent": self.recent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, also if the run folder was renamed; not the score of a file that no longer exists."""
        check_state(self, state_dict, self.state_dict().keys() - {"dirpath"})
        self.recent = state_dict["recent"]
        best = Path(self.dirpath or "") / run_files.BEST_CHECKPOINT
        changes: dict[str, Any] = {"dirpath": self.dirpath}
        if not best.is_file():  # for example set aside after a wrong result
            initial_state = super().state_dict()
            changes |= {name: initial_state[name] for name in OF_BEST}
        elif state_dict["best_model_path"]:
            changes |= {
                "best_model_path": str(best),
                "kth_best_model_path": str(best),
                "best_k_models": {str(best): state_dict["best_model_score"]},
            }
        super().load_state_dict(state_dict | changes)

    def _monitor_candidates(self, trainer: Trainer) -> dict[str, Tensor]:
        """Return the logged metrics, with the mean over the window in place of the monitored one."""
        candidates = super()._monitor_candidates(trainer)
        if self.monitor in candidates and self.window > 1 and self.recent:
            candidates[self.monitor] = torch.tensor(self.recent, dtype=torch.float64).mean().float()
        return candidates

    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        with _failing_together(trainer):
            super()._save_checkpoint(trainer, filepath)

    def _update_best_and_save(self, current: Tensor, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        """Keep the checkpoint in memory if the file cannot be written."""
        if self._unsaved is None:
            self._written = {name: copy(value) for name, value in self.state_dict().items()}
        self._unsaved = None
        try:
            super()._update_best_and_save(current, trainer, monitor_candidates)
        except OSError as error:
            content = trainer._checkpoint_connector.dump_checkpoint(self.save_weights_only)
            self._unsaved = deepcopy(move_data_to_device(content, torch.device("cpu")))
            kept = "training continues, and the checkpoint is written as soon as possible"
            rank_zero_warn(f"could not save {run_files.BEST_CHECKPOINT} ({error.strerror}); {kept}")
            if trainer.is_global_zero:
                note_unsaved(run_files.BEST_CHECKPOINT, Path(self.best_model_path), error)
        else:
            if trainer.is_global_zero:
                forget_unsaved(run_files.BEST_CHECKPOINT)

    def _save_again(self, trainer: Trainer, pauses_s: Sequence[float] = ()) -> OSError | None:
        """Write the checkpoint in memory, after a failure again after each of the pauses; return the last error."""
        if self._unsaved is None:
            return None
        failure: OSError | None = None
        for _ in attempts(pauses_s):
            try:
                with _failing_together(trainer):
                    trainer.strategy.save_checkpoint(self._unsaved, self.best_model_path)
                    trainer.strategy.barrier("Trainer.save_checkpoint")
            except OSError as error:
                failure = error
                continue
            self._unsaved = None
            if trainer.is_global_zero:
                forget_unsaved(run_files.BEST_CHECKPOINT)
            return None
        return failure


class EpochCheckpoint(Checkpoint):
    """Keeps `epoch-0010.ckpt`, `epoch-0020.ckpt`, ... in the run folder; the number is that of finished epochs.

    The files are links to the checkpoints of `LastCheckpoint`, which must precede this callback, and are never deleted
    (50 MB each for yolov8n). A full disk does not end the run.

    Args:
        every_n_epochs: Epochs between two checkpoints, >= 1.
    """

    @checked_arguments(every_n_epochs=">= 1")
    def __init__(self, every_n_epochs: int = 1) -> None:
        self.every_n_epochs = every_n_epochs

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            callback_before(trainer, self, LastCheckpoint)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = trainer.current_epoch + 1
        is_dry_run = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        if epochs % self.every_n_epochs or not trainer.is_global_zero or is_dry_run:
            return
        folder = _checkpoint_folder(trainer)
        path = folder / f"epoch-{epochs:04d}.ckpt"
        try:
            link_checkpoint(folder / run_files.STEP_CHECKPOINT.format(steps=steps_begun(trainer)), path)
        except OSError as error:
            rank_zero_warn(f"could not save {path} ({error.strerror}); training continues")


class LastCheckpoint(Checkpoint):
    """Saves the whole training state every N steps, at the end of every epoch and on a stop signal.

    Nothing is saved after the last batch of an epoch: the end of the epoch follows, after validation, and a run resumed
    between the two would skip both. If the fit ends within an epoch (`max_steps`, `max_time`), the checkpoint of its
    last batch is kept, so that a longer fit continues with the rest of the epoch. Nothing is saved on another
    exception, because a step may be incomplete, and nothing with `fast_dev_run`. A full disk does not end the run:
    older checkpoints are kept, and saving continues with the next one. The checkpoint of the last epoch and the one
    after a stop signal are tried several times; a fit whose last epoch cannot be saved fails.

    All checkpoints of the Trainer, also those of other callbacks, contain the gradients that no optimizer step has used
    yet (`accumulate_grad_batches`, or manual optimization); with several ranks, their mean. A module that saves them
    itself has the attribute `saves_gradients = True`. The checkpoints also contain the values that were logged with
    `self.log(on_epoch=True)` in the current epoch, so that means of the epoch and `ReduceLROnPlateau` are resumed, what
    a `BaseFinetuning` has unfrozen, and a stop that `min_epochs` defers. A fit that `EarlyStopping` has ended trains
    nothing when it is started again with an `EarlyStopping`. Lightning calls this callback after all other checkpoint
    callbacks, so that its checkpoints contain their best scores.
    A resumed fit reloads the training data in the same epochs (`reload_dataloaders_every_n_epochs`).

    Args:
        interval_steps: Batches between two checkpoints within an epoch, >= 0; 0 saves at the end of epochs only.
        keep: Number of `step-*.ckpt` that are kept, >= 1; `last.ckpt` is a link to the newest. With the self-check
            (`model.guard.self_check_share`), up to two more are kept: one is older than the last round of checks.
    """

    @checked_arguments(interval_steps=">= 0", keep=">= 1")
    def __init__(self, interval_steps: int = 500, keep: int = 3) -> None:
        self.interval_steps = interval_steps
        self.keep = keep
        self._failure: OSError | None = None
        """Error of the newest checkpoint, or None."""
        self._saved_steps: int | None = None
        """Steps of the newest checkpoint of this fit."""
        self._has_ended_within_epoch = False
        self._is_resumed = False
        self._loaded: dict[str, Any] | None = None
        """State of the loop in the checkpoint that is resumed, until training starts; None for one without it."""
        self._double_weights: dict[str, Tensor] = {}
        self._logged_values = LoggedValues()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        _checkpoint_folder(trainer)  # raises a UserError
        if stage == "fit":
            _place_after_other_checkpoints(self, trainer)
            place_loader_sources(trainer)
        self._has_ended_within_epoch = False
        self._saved_steps = None
        self._is_resumed = False
        self._loaded = None
        self._double_weights = {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state of the loop that Lightning does not save; a collective call."""
        checkpoint[LOOP_STATE] = {
            "logged_values": self._logged_values.state_dict(trainer, pl_module),
            "loader_epochs": requested_epochs(trainer),
            "frozen_parts": frozen_parts(trainer, pl_module),
            "has_deferred_stop": has_deferred_stop(trainer),
            "early_stop": early_stop(trainer),
            "gradients": _saved_gradients(trainer, pl_module),
        }

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the state of the loop until training starts, when the parameters are on their device."""
        self._is_resumed = True
        if trainer.state.fn == TrainerFn.FITTING:
            trainer.num_sanity_val_steps = 0  # a sanity check would change the state of the module
        self._loaded = checkpoint.get(LOOP_STATE)
        if self._loaded is not None:
            set_requested_epochs(trainer, self._loaded["loader_epochs"])
        weights = checkpoint.get("current_model_state", checkpoint.get("state_dict", {}))  # of `WeightAveraging`
        # With the precision 64-true, Lightning loads the weights before it converts the module.
        self._double_weights = {
            name: value for name, value in weights.items() if getattr(value, "dtype", None) == torch.float64
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_new = not self._is_resumed and not trainer.global_step
        if is_new and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            _warn_of_earlier_checkpoints(_checkpoint_folder(trainer))
        if self._double_weights:
            pl_module.load_state_dict(self._double_weights, strict=False)
            self._double_weights = {}
        if self._loaded is not None:
            self._restore(trainer, pl_module, self._loaded)
            self._loaded = None
        begin_next_epoch(trainer)
        align_reloads(trainer)
        if self._is_resumed:
            _warn_of_inexact_callbacks(trainer)
        if omits_epoch_start(trainer):
            for scheduler in callbacks_of(trainer, GradientAccumulationScheduler):
                scheduler.on_train_epoch_start(trainer)
            _warn_of_omitted_hooks(trainer, pl_module)

    def _restore(self, trainer: Trainer, module: LightningModule, state: dict[str, Any]) -> None:
        """Restore the state of the loop in a checkpoint."""
        restore_gradients(module, state["gradients"], trainer.scaler)
        self._logged_values.restore(trainer, module, state["logged_values"])
        restore_frozen_parts(trainer, module, state["frozen_parts"])
        if state["has_deferred_stop"]:
            trainer.should_stop = True
        if state["early_stop"] is not None and trainer.early_stopping_callbacks:
            trainer.should_stop = True
            rank_zero_info(
                f"EarlyStopping has ended this training: {state['early_stop']} To continue, remove EarlyStopping from "
                "the callbacks of the Trainer"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged_values.restore_metrics(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._logged_values.restore_metrics(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._logged_values.add_sums(trainer)
        # Other checkpoint callbacks monitor the values before `on_train_epoch_end` of this one.
        if trainer.is_last_batch:
            self._logged_values.end_epoch(trainer, pl_module)
        self._has_ended_within_epoch = ends_within_epoch(trainer)
        if self._has_ended_within_epoch:
            self._save(trainer, FINAL_PAUSES_S)
        elif self.interval_steps and (batch_idx + 1) % self.interval_steps == 0 and not trainer.is_last_batch:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save a checkpoint of the batch before the validation again: a resumed fit does not repeat the validation."""
        if not is_validation_of_fit(trainer):
            return
        align_reloads(trainer)
        self._has_ended_within_epoch = ends_within_epoch(trainer)  # `EarlyStopping` decides after a validation
        if self._has_ended_within_epoch:
            self._save(trainer, FINAL_PAUSES_S)
        elif self._saved_steps == steps_begun(trainer):
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
        self._logged_values.end_epoch(trainer, pl_module)
        if self._has_ended_within_epoch:
            return
        is_last = is_last_epoch(trainer) or trainer.should_stop or trainer.global_step == trainer.max_steps
        pauses_s: Sequence[float] = ()
        if is_last:
            pauses_s = FINAL_PAUSES_S
        elif request.number is not None:
            pauses_s = STOP_PAUSES_S
        self._save(trainer, pauses_s)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise a NotSavedError if the last checkpoint could not be written."""
        if self._failure is not None:
            raise NotSavedError(self._failure.errno, self._failure.strerror, self._failure.filename)

    def _save(self, trainer: Trainer, pauses_s: Sequence[float] = ()) -> None:
        """Save; after a failure again after each of `pauses_s`, which must be equal in all ranks."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        path = _checkpoint_folder(trainer) / run_files.STEP_CHECKPOINT.format(steps=steps_begun(trainer))
        for pause_s in attempts(pauses_s):
            try:
                with _failing_together(trainer):
                    trainer.save_checkpoint(path, weights_only=False)
                if trainer.is_global_zero:
                    link_checkpoint(path, path.with_name(run_files.LAST_CHECKPOINT))
                    trusted = trusted_steps(Path(trainer.default_root_dir))
                    checkpoints = path.parent.glob(run_files.STEP_CHECKPOINTS)
                    for checkpoint in superseded(checkpoints, path, self.keep, trusted):
                        remove_checkpoint(checkpoint)
                    forget_unsaved(run_files.LAST_CHECKPOINT)
                self._failure = None
                self._saved_steps = steps_begun(trainer)
                return
            except OSError as error:
                self._failure = error
            if trainer.is_global_zero:
                note_unsaved(run_files.LAST_CHECKPOINT, path, self._failure)
            consequence = "training continues"
            if pause_s is not None:
                consequence = f"next attempt in {pause_s:g} s"
            elif pauses_s:
                consequence = "no further attempt"
            rank_zero_warn(
                f"could not save {path} ({self._failure.strerror}); {consequence}, older checkpoints are kept"
            )
