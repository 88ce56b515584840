"""The callbacks that a run has besides those of its configuration."""

from collections.abc import Sequence

from lightning.pytorch import Callback

from yolo_lightning.callbacks.checkpoint import BestCheckpoint, LastCheckpoint
from yolo_lightning.callbacks.ema import EMA
from yolo_lightning.callbacks.environment_file import EnvironmentFile
from yolo_lightning.callbacks.frame_gallery import FrameGallery
from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile
from yolo_lightning.callbacks.mean_ap import FinalValidation, MeanAP
from yolo_lightning.callbacks.metrics_file import MetricsFile
from yolo_lightning.callbacks.prediction_pictures import PredictionPictures
from yolo_lightning.callbacks.random_state import RandomState
from yolo_lightning.callbacks.results_file import ResultsFile
from yolo_lightning.callbacks.stall_monitor import StallMonitor
from yolo_lightning.callbacks.status_file import StatusFile
from yolo_lightning.callbacks.stop_on_signal import StopOnSignal
from yolo_lightning.callbacks.submission_writer import SubmissionWriter

REQUIRED: tuple[type[Callback], ...] = (HeartbeatFile, StopOnSignal)
"""Callbacks of every fit, in front of all others: the supervisor and a stop by signal need them."""

DEFAULTS: tuple[type[Callback], ...] = (
    EMA,
    MeanAP,
    FinalValidation,
    MetricsFile,
    ResultsFile,
    RandomState,
    StallMonitor,
    FrameGallery,
    PredictionPictures,
    SubmissionWriter,
    BestCheckpoint,
    LastCheckpoint,
)
"""Callbacks of every subcommand, unless `default_callbacks` is false."""

FIT_DEFAULTS: tuple[type[Callback], ...] = (StatusFile, EnvironmentFile)
"""Callbacks of `fit` besides `DEFAULTS`, unless `default_callbacks` is false."""


def with_default_callbacks(
    configured: Sequence[Callback], *, is_fit: bool, use_defaults: bool = True
) -> list[Callback]:
    """Return the callbacks of a run: the required and the default ones in the order above, then the others.

    Args:
        configured: Callbacks of `trainer.callbacks`. One of a default's class, or of a subclass, replaces the default.
        is_fit: Whether the subcommand is `fit`.
        use_defaults: False for the required and the configured callbacks only.
    """
    kinds = (*REQUIRED, *(FIT_DEFAULTS if use_defaults else ())) if is_fit else ()
    kinds += DEFAULTS if use_defaults else ()
    chosen: list[Callback] = []
    for kind in kinds:
        chosen += [one for one in configured if isinstance(one, kind)] or [kind()]
    return chosen + [one for one in configured if one not in chosen]
