"""Settings of the reactions to non-finite values, to a lack of memory and to wrong results."""

from yolo_lightning.utils.choices import settings_group


@settings_group(
    "model.guard",
    max_consecutive_nonfinite=">= 1",
    max_rollbacks=">= 0",
    rollback_lr_factor="> 0, <= 1",
    oom_splits=">= 0",
    max_oom_splits=">= 0",
    self_check_share=">= 0, <= 1",
)
class GuardSettings:
    """Reactions to non-finite values, to a lack of memory and to wrong results.

    Attributes:
        max_consecutive_nonfinite: Restore the newest finite checkpoint after this many consecutive non-finite losses or
            gradients, >= 1.
        max_rollbacks: Number of restored checkpoints after which the next rollback ends the training, >= 0. The fit
            also ends if `max_consecutive_nonfinite` further values after a rollback are not finite.
        rollback_lr_factor: Factor of all learning rates after each rollback, > 0 and <= 1.
        oom_splits: Number of times that the number of images computed at once is halved from the beginning, >= 0; the
            gradients of the parts are summed.
        max_oom_splits: Number of halvings that out-of-memory errors can reach, >= 0; a further error is fatal. Not
            supported with `trainer.sync_batchnorm`.
        self_check_share: Share of the time, >= 0 and <= 1, for checks of the convolutions, which take turns, by
            PyTorch's plain operators; a wrong result that repeats ends the fit. 0 disables the checks, 1 checks every
            step.
    """

    max_consecutive_nonfinite: int = 5
    max_rollbacks: int = 3
    rollback_lr_factor: float = 0.5
    oom_splits: int = 0
    max_oom_splits: int = 3
    self_check_share: float = 0.001
