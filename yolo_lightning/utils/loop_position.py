"""Position of the training loop, computed from the counters of Trainer's loops.

Two other modules read such counters: `callbacks/status_file.py` reads the batch within the epoch from the Trainer, and
`checkpoints/resume.py` reads the finished epochs from a checkpoint.

The step count and the schedule step are equal while all epochs have the same number of batches. They differ after a
resume with another batch size: the step count continues, the schedule step follows the new length of an epoch.
"""

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource

from yolo_lightning.errors import UserError


class LoaderLoop:
    """The training loop of a Trainer, as a loader of the training data needs it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def epochs_trained(self) -> int:
        return epochs_trained(self._trainer)

    def loaders(self) -> int:
        """Return the number of loaders that the fit uses; 0 before the fit has requested them."""
        combined = self._trainer.fit_loop._combined_loader
        return 0 if combined is None else len(combined.flattened)

    def iterators(self) -> list[Any]:
        """Return the iterators of the loaders from which the fit takes its batches; none outside of a fit."""
        combined = self._trainer.fit_loop._combined_loader
        if combined is None or combined._iterator is None:
            return []
        return combined._iterator.iterators

    def is_within_batch(self) -> bool:
        """Whether a batch has begun and has not been trained: a resumed fit trains it."""
        batches = self._trainer.fit_loop.epoch_loop.batch_progress.current
        return bool(batches.ready > batches.processed)  # type: ignore[attr-defined]

    def announce_epoch(self) -> None:
        """Complete what Lightning has omitted when it restored the loops; called before an epoch of the fit begins.

        `steps_begun` then does not count the batch in which an exception has ended a fit: the resumed fit trains the
        batch again. When it resumes, Lightning resets the counters of the batches in the epoch, but not those of all
        batches. This can be removed when https://github.com/Lightning-AI/pytorch-lightning/issues/18060 is solved.
        """
        load_skipped_states(self._trainer)
        begin_next_epoch(self._trainer)
        batches = self._trainer.fit_loop.epoch_loop.batch_progress.total
        batches.ready = batches.processed  # type: ignore[attr-defined]
        batches.started = batches.processed  # type: ignore[attr-defined]

    def recount(self, batches: int) -> None:
        """Set the number of finished batches of the resumed epoch; `steps_begun` is unchanged.

        With another batch size the rest of the epoch has another number of batches. Lightning ends an epoch by the
        number of its batches and would otherwise end it too early or too late.
        """
        progress = self._trainer.fit_loop.epoch_loop.batch_progress.current
        shift = batches - progress.processed  # type: ignore[attr-defined]
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + shift)


def has_data(trainer: Trainer, method: str) -> bool:
    """Whether a method of the Trainer, such as `fit`, has loaders: its arguments, or hooks of a module."""
    loop = getattr(trainer, f"{method}_loop")
    return bool(loop._data_source.is_defined())


def load_skipped_states(trainer: Trainer) -> None:
    """Load the states of the training loaders that Lightning has not loaded when it restored the loops.

    Lightning loads them when it requests the loaders. `Trainer.estimated_stepping_batches` in `configure_optimizers`
    requests them before the loops are restored, and then their states are never loaded. Can be removed when
    https://github.com/Lightning-AI/pytorch-lightning/issues/20550 is solved.
    """
    trainer.fit_loop._load_combined_loader_states()


def begin_next_epoch(trainer: Trainer) -> None:
    """Let a fit with `max_steps` that resumes at the end of an epoch begin the next epoch.

    With `max_steps`, Lightning restarts the epoch that has ended: its loop counts the epoch twice, and without a
    validation, it trains one batch too many. Can be removed when a resume at the end of an epoch with `max_steps`
    trains as many epochs as an uninterrupted fit, as without `max_steps`.
    """
    loop = trainer.fit_loop
    if loop.restarted_on_epoch_end:
        loop.epoch_progress.increment_completed()
        loop.reset_restart_stage()
        loop.epoch_loop.restarting = False


def steps_begun(trainer: Trainer) -> int:
    """Return the number of batches begun since training began, over all restarts, including the current batch.

    Checkpoints, rows of `metrics.csv` and the heartbeat file contain this number. It never decreases.
    """
    return int(trainer.fit_loop.total_batch_idx) + 1


def batches_per_epoch(trainer: Trainer) -> int:
    """Return the number of training batches per epoch; 0 if an `IterableDataset` without length makes it unknown."""
    if trainer.num_training_batches == math.inf:
        return 0
    return int(trainer.num_training_batches)


def require_epoch_length(trainer: Trainer, need: str) -> int:
    """Return the number of training batches per epoch; raise a UserError that begins with `need` if it is unknown."""
    batches = batches_per_epoch(trainer)
    if not batches:
        raise UserError(f"{need} the number of batches per epoch: set trainer.limit_train_batches to an integer")
    return batches


def begins_anew(trainer: Trainer, stage: str) -> bool:
    """Whether a Trainer that has trained no batch sets up a fit; a checkpoint is loaded after the setup.

    Modules and callbacks may have been used by another Trainer, whose training does not continue.
    """
    return stage == "fit" and not steps_begun(trainer)


def is_validation_of_fit(trainer: Trainer) -> bool:
    return not trainer.sanity_checking and trainer.state.fn == "fit"


def validation_interval_s(trainer: Trainer) -> float | None:
    """Return the seconds between two validations with a `val_check_interval` in time, else None."""
    return getattr(trainer, "_val_check_time_interval", None)


def validate_after_batch(trainer: Trainer) -> int | float | None:
    """Let a validation follow the current batch, whatever `trainer.val_check_interval` is.

    The epoch must be one with validations (`trainer.check_val_every_n_epoch`). Returns the value that
    `trainer.val_check_batch` had if it is changed; the caller restores it.
    """
    if validation_interval_s(trainer) is not None:
        trainer._last_val_time = -math.inf  # type: ignore[attr-defined]  # until the validation has ended
        return None
    if trainer.val_check_batch == 1:
        return None
    earlier = trainer.val_check_batch
    trainer.val_check_batch = 1
    return earlier


def is_last_epoch(trainer: Trainer) -> bool:
    return trainer.max_epochs is not None and trainer.current_epoch == trainer.max_epochs - 1


def ends_within_epoch(trainer: Trainer) -> bool:
    """Whether the fit ends after the current batch, which is not the last one of its epoch.

    Lightning counts such an epoch as trained; the batches of its rest would never be trained after a resume.
    """
    return ends_after_batch(trainer) and not trainer.is_last_batch


def ends_after_batch(trainer: Trainer) -> bool:
    """Whether the fit ends after the current batch, because a callback has asked for it or by `trainer.max_steps`."""
    stops_early = trainer.should_stop and trainer.fit_loop._can_stop_early
    return bool(stops_early or trainer.global_step == trainer.max_steps)


def has_deferred_stop(trainer: Trainer) -> bool:
    """Whether a callback has asked for the end of the fit, which `min_epochs` or `min_steps` defers.

    Lightning does not store this. `EarlyStopping` may decide otherwise before the fit may end, and the fit ends anyway.
    """
    return bool(trainer.should_stop) and not trainer.fit_loop._can_stop_early


def early_stop(trainer: Trainer) -> str | None:
    """Return the reason for which an `EarlyStopping` of Lightning ends the fit, None if none has decided so."""
    if not trainer.should_stop:
        return None
    for callback in trainer.early_stopping_callbacks:
        if callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            return str(callback.stopping_reason_message)
    return None


def omits_epoch_start(trainer: Trainer) -> bool:
    """Whether Lightning does not call `on_train_epoch_start` for the first epoch of a resumed fit.

    It is the rest of an epoch, or the epoch after a checkpoint of the last batch of an epoch.
    """
    return bool(trainer.fit_loop.restarted_mid_epoch)


def is_within_epoch(trainer: Trainer) -> bool:
    """Whether an epoch has begun and its end, with the hooks `on_train_epoch_end`, has not."""
    epochs = trainer.fit_loop.epoch_progress.current
    return bool(epochs.ready > epochs.processed)  # type: ignore[attr-defined]


def has_pending_epoch_end(trainer: Trainer) -> bool:
    """Whether a checkpoint saved now is resumed after the end of the epoch, and without the rest of that end."""
    epochs = trainer.fit_loop.epoch_progress.current
    ends = is_within_epoch(trainer) and trainer.is_last_batch
    return bool(ends or epochs.processed > epochs.completed)  # type: ignore[attr-defined]


def pending_batches(trainer: Trainer) -> int:
    """Return the number of batches in the epoch, if the steps of `ReduceLROnPlateau` after the last one are pending.

    Lightning makes these steps after `on_train_batch_end`, and none while gradients are accumulated.
    """
    batches = trainer.fit_loop.epoch_loop.batch_progress.current
    if batches.processed == batches.completed or is_accumulating(trainer):  # type: ignore[attr-defined]
        return 0
    return int(batches.ready)


def end_restart(trainer: Trainer) -> None:
    """Let Lightning end the current epoch as any other epoch, although the fit was resumed within the epoch.

    Lightning makes no step of `ReduceLROnPlateau` at the end of a resumed epoch, because its checkpoints contain no
    logged values.
    """
    trainer.fit_loop._restarting = False


def broadcast_no_signals(trainer: Trainer) -> None:
    """Let Lightning omit its message before each batch, whether the first rank has received SIGTERM.

    All ranks agree on signals before (`StopOnSignal`). Can be removed when the message can be switched off, see
    https://github.com/Lightning-AI/pytorch-lightning/issues/21487.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


class LoaderSource(_DataLoaderSource):
    """Lets a resumed fit request its loaders in the epochs in which the uninterrupted fit has requested them.

    Lightning requests them in the epoch of the resume, or in the one before it, and counts the epochs to the next
    reload from there. Loaders that depend on `trainer.current_epoch` then have other data. Can be removed when
    https://github.com/Lightning-AI/pytorch-lightning/issues/21492 is solved.
    """

    def __init__(self, trainer: Trainer, source: _DataLoaderSource) -> None:
        super().__init__(source.instance, source.name)
        self.epoch: int | None = None  # of the newest request
        self.saved_epoch: int | None = None  # of the newest request before the checkpoint
        self._trainer = trainer

    def dataloader(self) -> Any:
        epochs = self._trainer.fit_loop.epoch_progress.current
        present_epoch = epochs.completed
        self.epoch = self._epoch_of_request(present_epoch)
        epochs.completed = self.epoch  # `trainer.current_epoch`
        try:
            return super().dataloader()
        finally:
            epochs.completed = present_epoch

    def _epoch_of_request(self, present_epoch: int) -> int:
        interval: int = self._trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if self.saved_epoch is None or (interval and present_epoch - self.saved_epoch >= interval):
            return present_epoch
        return self.saved_epoch


def place_loader_sources(trainer: Trainer) -> None:
    """Let the fit that begins request its loaders from a `LoaderSource` each."""
    for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop):
        loop._data_source = LoaderSource(trainer, loop._data_source)


def requested_epochs(trainer: Trainer) -> dict[str, int | None]:
    """Return the epoch of the newest request of each loader by the name of its hook, None before the first one."""
    return {source.name: source.epoch for source in _loader_sources(trainer)}


def set_requested_epochs(trainer: Trainer, epochs: Mapping[str, int | None]) -> None:
    """Set the result of `requested_epochs` in the interrupted fit."""
    for source in _loader_sources(trainer):
        source.saved_epoch = epochs.get(source.name)


def align_reloads(trainer: Trainer) -> None:
    """Let Lightning count the epochs to the next reload from the newest request; call it after requests."""
    epochs = requested_epochs(trainer)
    train_epoch = epochs.get("train_dataloader")
    if train_epoch is not None:
        trainer.fit_loop._last_train_dl_reload_epoch = train_epoch
    val_epoch = epochs.get("val_dataloader")
    if val_epoch is not None:
        trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = val_epoch


def _loader_sources(trainer: Trainer) -> list[LoaderSource]:
    sources = (trainer.fit_loop._data_source, trainer.fit_loop.epoch_loop.val_loop._data_source)
    return [source for source in sources if isinstance(source, LoaderSource)]


def is_accumulating(trainer: Trainer) -> bool:
    """Whether Lightning's automatic optimization has gradients that no optimizer step has used."""
    return trainer.fit_loop._should_accumulate()


def epochs_trained(trainer: Trainer) -> int:
    """Return the number of epochs whose batches have all been trained.

    After a checkpoint saved at the end of an epoch is restored, `trainer.current_epoch` is still that epoch.
    """
    return int(trainer.fit_loop.epoch_progress.current.processed)  # type: ignore[attr-defined]


def schedule_step(trainer: Trainer, batches: int) -> int:
    """Return the step that learning rate schedules use, after `batches` batches of the current epoch.

    This is the number of batches since training began if every epoch had as many batches as the current one.
    """
    return trainer.current_epoch * int(trainer.num_training_batches) + batches


def schedule_position(trainer: Trainer) -> int:
    """Return the number of trained steps in the terms of `schedule_step`, at the start of training."""
    load_skipped_states(trainer)
    steps = epochs_trained(trainer) * int(trainer.num_training_batches)
    if is_within_epoch(trainer):
        steps += trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return steps


def end_epoch_after(trainer: Trainer, batches: int) -> None:
    """Let the current epoch end after `batches` batches, if more than one batch is left to fetch.

    Lightning decides that a batch is the last one when it fetches the batch. The length of an epoch for schedules,
    `trainer.num_training_batches`, is unchanged.
    """
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None
    fetcher.length = min(batches, int(trainer.num_training_batches))
