"""The callbacks that a run has besides those of its configuration."""

from collections.abc import Sequence

from lightning.pytorch import Callback

from yolo_lightning import callbacks

for _name in callbacks.__all__:
    getattr(callbacks, _name)  # a configuration finds a callback by its short name only if the class is imported

REQUIRED: tuple[type[Callback], ...] = (callbacks.HeartbeatFile, callbacks.StopOnSignal)
"""Callbacks of every fit, in front of all others: the supervisor and a stop by signal need them."""

DEFAULTS: tuple[type[Callback], ...] = (
    callbacks.EMA,
    callbacks.MeanAP,
    callbacks.FinalValidation,
    callbacks.MetricsFile,
    callbacks.RandomState,
    callbacks.StallMonitor,
    callbacks.FrameGallery,
    callbacks.SubmissionWriter,
    callbacks.BestCheckpoint,
    callbacks.LastCheckpoint,
)
"""Callbacks of every subcommand, unless `default_callbacks` is false."""

FIT_DEFAULTS: tuple[type[Callback], ...] = (callbacks.StatusFile, callbacks.EnvironmentFile)
"""Callbacks of `fit` besides `DEFAULTS`, unless `default_callbacks` is false."""


def with_default_callbacks(
    configured: Sequence[Callback], *, is_fit: bool, use_defaults: bool = True
) -> list[Callback]:
    """Return the callbacks of a run: the required and the default ones in the order above, then the others.

    A configured callback of a default's class, or of a subclass, replaces the default.
    """
    classes: list[type[Callback]] = []
    if is_fit:
        classes.extend(REQUIRED)
    if is_fit and use_defaults:
        classes.extend(FIT_DEFAULTS)
    if use_defaults:
        classes.extend(DEFAULTS)
    chosen: list[Callback] = []
    for callback_class in classes:
        replacements = [callback for callback in configured if isinstance(callback, callback_class)]
        chosen.extend(replacements or [callback_class()])
    return chosen + [callback for callback in configured if callback not in chosen]
