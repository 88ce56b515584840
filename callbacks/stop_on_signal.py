"""Ends a fit after the current step when SIGINT or SIGTERM has arrived."""

from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from yolo_lightning.errors import UserError
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.distributed import sum_over_ranks
from yolo_lightning.utils.loop_position import broadcast_no_signals, is_validation_of_fit
from yolo_lightning.utils.stop_signals import request

Precision = Literal[
    "auto",
    "32-true",
    "bf16-mixed",
    "16-mixed",
    "64-true",
    "bf16-true",
    "16-true",
    "transformer-engine",
    "transformer-engine-float16",
    "64",
    "32",
    "16",
    "bf16",
    64,
    32,
    16,
]
"""Values of `trainer.precision`; the command line replaces `auto` before it creates the Trainer."""


class StoppableTrainer(Trainer):
    """A Trainer whose fit ends between two steps, on SIGINT as well as on SIGTERM, and never within a validation.

    Lightning's loops read `received_sigterm` after each step, after each validation batch and after each epoch, and
    raise `SIGTERMException` where the value is true. A checkpoint written within a validation cannot be resumed
    exactly, so the validation is finished first. A fit that has trained its last epoch finishes normally.

    Args:
        precision: `auto`, `32-true`, `bf16-mixed`, `16-mixed` or another precision of Lightning; null is `32-true`.
            `auto`, which only the command line accepts, selects mixed precision for `fit` if a test of seconds shows
            that it is correct and that convolutions take at most 0.7 of the time, else `32-true`. A resumed run keeps
            its precision. With `auto`, validate, test and predict compute in `32-true`.
        kwargs: Arguments of Lightning's Trainer.
    """

    def __init__(self, *, precision: Precision | None = None, **kwargs: Any) -> None:
        if precision == "auto":
            raise UserError(
                "precision must be a precision of Lightning, got 'auto', which only the command line replaces"
            )
        super().__init__(precision=precision, **kwargs)

    @property
    def received_sigterm(self) -> bool:
        """Whether the training loop ends here."""
        if not request.installed:
            return super().received_sigterm
        is_requested = request.number is not None if self.world_size == 1 else request.agreed
        return is_requested and bool(self.training) and not self.fit_loop.done


class StopOnSignal(Callback):
    """Defers SIGINT and SIGTERM to the end of the step once a step is trained, and lets all ranks agree on the step.

    A `YOLOModule` exchanges the signals of the ranks together with the losses of a step; for any other module, this
    callback exchanges them after each step.
    """

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        request.reinstall()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        request.reinstall()
        if request.installed:
            broadcast_no_signals(trainer)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Defer signals from the first step on, when there is something to save."""
        request.deferred = True
        if not request.is_exchanged:
            agree(trainer)
        request.is_exchanged = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let a signal during the validation end the fit after the epoch."""
        if is_validation_of_fit(trainer):
            agree(trainer)


def agree(trainer: Trainer) -> None:
    """Exchange between all ranks which signal one of them has received, so that all stop after the same step.

    A collective call where there are several ranks.
    """
    if request.installed and trainer.world_size > 1:
        with during(Activity.EXCHANGE):
            counts = torch.tensor(request.counts(), device=trainer.strategy.root_device)
            request.agree(sum_over_ranks(counts).tolist())
