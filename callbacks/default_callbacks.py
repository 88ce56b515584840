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
    kinds = (*REQUIRED, *(FIT_DEFAULTS if use_defaults else ())) if is_fit else ()
    kinds += DEFAULTS if use_defaults else ()
    chosen: list[Callback] = []
    for kind in kinds:
        chosen += [one for one in configured if isinstance(one, kind)] or [kind()]
    return chosen + [one for one in configured if one not in chosen]
