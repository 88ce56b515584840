"""Callbacks that look on from outside. They import no room of `yolo_lightning` but its leaves.

When each hook runs, and who acts there::

    all                        ProgressRecord, first: writes what the loop does for whoever watches; StatusFile;
                               StopOnSignal lets StoppableTrainer end a fit between two steps
    setup                      StallMonitor arms; EMA copies the network; CheckpointMirror begins
    on_fit_start               EnvironmentFile
    on_train_start             MetricsFile and ResultsFile cut back to the resumed step; RandomState restores generators
      on_train_batch_start     StallMonitor: fetch is over, step begins; FinalValidation
      on_train_batch_end       EMA averages after an update; MetricsFile; ResultsFile; LastCheckpoint every N steps
      on_validation_*          EMA swaps its weights in and out; MeanAP collects and scores; BestCheckpoint saves
      on_train_epoch_end       ResultsFile; LastCheckpoint; EpochCheckpoint
    on_train_end               EMA leaves its weights in the network
    on_test_*, on_predict_*    MeanAP, FrameGallery, PredictionPictures, SubmissionWriter
    teardown, on_exception     StallMonitor disarms; EMA swaps back; CheckpointMirror copies what is left

`__all__` holds the short names that YAML files use.
"""

from callbacks.checkpoint import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from callbacks.checkpoint_mirror import CheckpointMirror
from callbacks.curves import Curves
from callbacks.ema import EMA
from callbacks.environment_file import EnvironmentFile
from callbacks.epoch_checkpoint import EpochCheckpoint
from callbacks.final_validation import FinalValidation
from callbacks.frame_gallery import FrameGallery
from callbacks.mean_ap import MeanAP
from callbacks.metrics_file import MetricsFile
from callbacks.pictures import PredictionPictures
from callbacks.progress import ProgressLines, RunProgressBar
from callbacks.progress_record import ProgressRecord
from callbacks.random_state import RandomState
from callbacks.results_file import ResultsFile
from callbacks.stall import StallMonitor
from callbacks.status import StatusFile
from callbacks.stop import StopOnSignal, StoppableTrainer
from callbacks.submission import SubmissionWriter

__all__ = [
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "CheckpointMirror",
    "Curves",
    "EMA",
    "EnvironmentFile",
    "EpochCheckpoint",
    "FinalValidation",
    "FrameGallery",
    "LastCheckpoint",
    "MeanAP",
    "MetricsFile",
    "PredictionPictures",
    "ProgressLines",
    "ProgressRecord",
    "RandomState",
    "ResultsFile",
    "RunProgressBar",
    "StallMonitor",
    "StatusFile",
    "StopOnSignal",
    "StoppableTrainer",
    "SubmissionWriter",
]
