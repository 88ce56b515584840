"""Frames that a running training cannot read at the moment: they are read again, and an outage is waited for.

A disk that is not mounted for a minute must not become a training on gray images. A single file that stays unreadable
is left out, as a damaged one.
"""

import errno
import os
import random
import time
from collections.abc import Callable
from itertools import chain, repeat

from yolo_lightning.data.batch import Batch, Sample, collate
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.frame_checks import BadFrames
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.frames import AbsentFrameError, FrameError
from yolo_lightning.utils.activity import PATIENCE_VARIABLE, Activity, enter
from yolo_lightning.utils.rank_zero import rank_warn
from yolo_lightning.utils.stop_signals import Stopped, request

REREAD_PAUSES_S = (0.1, 0.5, 1.0)
"""Seconds before each further attempt to read the frames of a batch."""

OUTAGE_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
"""Seconds between two looks at the frames in an outage; the last one is repeated."""

PROBED_FRAMES = 16
OUTAGE_SHARE = 0.25
OUTAGE_FRAMES = 2
"""In an outage, at least this share and this number of the probed frames cannot be read."""

DEFAULT_PATIENCE_S = 24 * 3600.0
LOGGED_EVERY_S = 3600.0


class FrameOutageError(OSError):
    """Many frames cannot be read although the training has begun."""


class FrameOutage:
    """Reads batches of a running training again if frames are absent, in the process of the training.

    A sample depends on its key only, so that a batch that was read again equals the batch without the outage.
    """

    def __init__(self, bad_frames: BadFrames, pause: Callable[[float], None] = time.sleep) -> None:
        self.bad_frames = bad_frames
        self.patience_s = float(os.environ.get(PATIENCE_VARIABLE) or DEFAULT_PATIENCE_S)
        self._pause = pause
        self._random = random.Random(0)

    def whole(self, batch: Batch, dataset: TrainingDataset | EvaluationDataset) -> Batch:
        """Return the batch with the frames that became readable, after the end of any outage.

        Raises:
            FrameOutageError: If an outage lasts longer than `supervision.patience_h`.
            Stopped: If a stop signal arrives in an outage.
        """
        while True:
            for pause_s in REREAD_PAUSES_S:
                if not self.bad_frames.unknown(batch.absent):
                    return batch
                self._wait(pause_s)
                batch = read_again(batch, dataset)
            if not self.bad_frames.unknown(batch.absent):
                return batch
            problem = self._outage(dataset.frames)
            if not problem:
                return batch
            self._wait_for_end(dataset.frames, problem)

    def _wait_for_end(self, frames: LabelledFrames, problem: str) -> None:
        began_s = time.monotonic()
        logged_s = -LOGGED_EVERY_S
        for pause_s in chain(OUTAGE_PAUSES_S, repeat(OUTAGE_PAUSES_S[-1])):
            waited_s = time.monotonic() - began_s
            if waited_s > self.patience_s:
                raise FrameOutageError(errno.EIO, f"the frames could not be read for {waited_s:.0f} s: {problem}")
            if waited_s - logged_s >= LOGGED_EVERY_S:
                logged_s = waited_s
                rank_warn(
                    f"frames: {problem}; the training has waited for {waited_s:.0f} s and waits for at most "
                    f"{self.patience_s / 3600:g} h"
                )
            self._wait(pause_s)
            if request.number is not None:
                raise Stopped(request.number)
            problem = self._outage(frames)
            if not problem:
                break
        rank_warn(f"frames: readable again after {time.monotonic() - began_s:.0f} s; the training continues")

    def _outage(self, frames: LabelledFrames) -> str:
        """Return the problem if many frames cannot be read at the moment; else an empty string."""
        places = self._random.sample(range(len(frames)), min(PROBED_FRAMES, len(frames)))
        names = self.bad_frames.unknown(frames.index.file_name(place) for place in places)
        absences = []
        for name in sorted(names):
            enter(Activity.WAIT)
            try:
                frames.storage.read(name)
            except AbsentFrameError as error:
                absences.append(error)
            except FrameError:  # a damaged frame can be read
                continue
        if len(absences) < max(min(OUTAGE_FRAMES, len(names)), OUTAGE_SHARE * len(names), 1):
            return ""
        return f"{len(absences)} of {len(names)} probed frames cannot be read ({absences[0]})"

    def _wait(self, pause_s: float) -> None:
        """Wait, and report that the process waits on purpose."""
        enter(Activity.WAIT)
        self._pause(pause_s)


def read_again(batch: Batch, dataset: TrainingDataset | EvaluationDataset) -> Batch:
    """Return the batch, read in this process, in page-locked memory if the batch is."""
    samples: list[Sample] = []
    for key in batch.keys:
        enter(Activity.LOAD)  # a report for each sample: a failing disk can take a second per frame
        samples.append(dataset[key])
    reread_batch = collate(samples)
    if batch.images.is_pinned():
        return reread_batch.pin_memory()
    return reread_batch
