"""Lightning callbacks; configuration files use the short names in `__all__`.

Hooks and the callbacks that act in them::

    all                        HeartbeatFile (first), StatusFile; StopOnSignal ends a fit between two steps
    setup                      StallMonitor starts; EMA copies the network; CheckpointMirror starts; the first
                               TimedCallback, such as StatusFile, adds a FitTimer, which all of them read
    on_fit_start               EnvironmentFile
    on_train_start             MetricsFile drops rows behind the resumed step; RandomState restores
      on_train_batch_start     FinalValidation
      on_train_batch_end       EMA averages after an update; MetricsFile; LastCheckpoint every N steps; MeanAP warns
                               of a fit that ends before its first validation
      on_validation_*          EMA swaps its weights in and out; MeanAP collects and scores; BestCheckpoint saves
      on_train_epoch_end       EpochTable; FinishBy; LastCheckpoint; EpochCheckpoint
    on_train_end               EMA leaves its weights in the network
    on_test_*, on_predict_*    MeanAP, FrameGallery, SubmissionWriter
    teardown, on_exception     StallMonitor stops; EMA swaps back; CheckpointMirror copies the last checkpoint

The classes are imported at first use: those that train other models with Lightning import nothing of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yolo_lightning.callbacks.checkpoint import (
        BestCheckpoint as BestCheckpoint,
        EpochCheckpoint as EpochCheckpoint,
        LastCheckpoint as LastCheckpoint,
    )
    from yolo_lightning.callbacks.checkpoint_mirror import CheckpointMirror as CheckpointMirror
    from yolo_lightning.callbacks.ema import EMA as EMA
    from yolo_lightning.callbacks.environment_file import EnvironmentFile as EnvironmentFile
    from yolo_lightning.callbacks.epoch_table import EpochTable as EpochTable
    from yolo_lightning.callbacks.finish_by import FinishBy as FinishBy
    from yolo_lightning.callbacks.frame_gallery import FrameGallery as FrameGallery
    from yolo_lightning.callbacks.heartbeat_callback import HeartbeatCallback as HeartbeatCallback
    from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile as HeartbeatFile
    from yolo_lightning.callbacks.mean_ap import FinalValidation as FinalValidation, MeanAP as MeanAP
    from yolo_lightning.callbacks.metrics_file import MetricsFile as MetricsFile
    from yolo_lightning.callbacks.progress_bar import ProgressLines as ProgressLines, RunProgressBar as RunProgressBar
    from yolo_lightning.callbacks.random_state import RandomState as RandomState
    from yolo_lightning.callbacks.stall_monitor import StallMonitor as StallMonitor
    from yolo_lightning.callbacks.status_file import StatusFile as StatusFile
    from yolo_lightning.callbacks.stop_on_signal import (
        StopOnSignal as StopOnSignal,
        StoppableTrainer as StoppableTrainer,
    )
    from yolo_lightning.callbacks.submission_writer import SubmissionWriter as SubmissionWriter

_FILES = {
    "BestCheckpoint": "checkpoint",
    "EpochCheckpoint": "checkpoint",
    "LastCheckpoint": "checkpoint",
    "CheckpointMirror": "checkpoint_mirror",
    "EMA": "ema",
    "EnvironmentFile": "environment_file",
    "EpochTable": "epoch_table",
    "FinishBy": "finish_by",
    "FrameGallery": "frame_gallery",
    "HeartbeatCallback": "heartbeat_callback",
    "HeartbeatFile": "heartbeat_file",
    "FinalValidation": "mean_ap",
    "MeanAP": "mean_ap",
    "MetricsFile": "metrics_file",
    "ProgressLines": "progress_bar",
    "RunProgressBar": "progress_bar",
    "RandomState": "random_state",
    "StallMonitor": "stall_monitor",
    "StatusFile": "status_file",
    "StopOnSignal": "stop_on_signal",
    "StoppableTrainer": "stop_on_signal",
    "SubmissionWriter": "submission_writer",
}
"""File of each class."""
__all__ = [name for name in _FILES if name != "StoppableTrainer"]


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILES[name]}"), name)
