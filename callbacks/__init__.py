"""Callbacks that look on from outside. They import no room of `yolo_lightning` but its leaves.

When each hook runs, and who acts there::

    all                        ProgressRecord, first: writes what the loop does for whoever watches
    setup                      StallMonitor arms; EMA copies the network
    on_train_start             MetricsFile cuts its file back to the resumed step; RandomState restores the generators
      on_train_batch_start     StallMonitor: fetch is over, step begins; FinalValidation
      on_train_batch_end       EMA averages after an update; MetricsFile; LastCheckpoint every N steps
      on_validation_*          EMA swaps its weights in and out; MeanAP collects and scores; BestCheckpoint saves
      on_train_epoch_end       LastCheckpoint
    on_train_end               EMA leaves its weights in the network
    on_test_*, on_predict_*    MeanAP, PredictionPictures, SubmissionWriter
    teardown, on_exception     StallMonitor disarms; EMA swaps back

`__all__` holds the short names that YAML files use.
"""

from callbacks.checkpoint import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from callbacks.ema import EMA
from callbacks.final_validation import FinalValidation
from callbacks.mean_ap import MeanAP
from callbacks.metrics_file import MetricsFile
from callbacks.pictures import PredictionPictures
from callbacks.progress import ProgressLines, RunProgressBar
from callbacks.progress_record import ProgressRecord
from callbacks.random_state import RandomState
from callbacks.stall import StallMonitor
from callbacks.submission import SubmissionWriter

__all__ = [
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "EMA",
    "FinalValidation",
    "LastCheckpoint",
    "MeanAP",
    "MetricsFile",
    "PredictionPictures",
    "ProgressLines",
    "ProgressRecord",
    "RandomState",
    "RunProgressBar",
    "StallMonitor",
    "SubmissionWriter",
]
