"""Notices that training has stopped making progress, says where, and ends the process.

Only the training loop's own progress counts: a thread that sends heartbeats goes on while training is dead. Two
watchers share the work. A thread writes the report and ends the loader's workers, as they outlive a dead parent. Where
a C call holds the interpreter lock, the thread cannot run, and a small process (`last_resort`) ends the training
process a little later. Neither counts time in which the process was suspended. An outside process can do more; see
docs.
"""

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.checkpoints.run_folder import INCIDENTS, has_checkpoint
from yolo_lightning.supervision.heartbeat import STACKS_SIGNAL
from yolo_lightning.supervision.last_resort import LastResort
from yolo_lightning.utils.distributed import launch_id, rank_suffix, restarts
from yolo_lightning.utils.exit_codes import ExitCode

STACKS = "stacks.txt"

GRACE_S = 20.0
"""How much later than the thread the last resort ends the process."""

GAP_LEAST_S = 2.0
GAP_SHARE = 0.1
"""A watching thread that did not run for this share of the timeout, and at least that long, was suspended."""

OTHERS_REPORT_S = 5.0
"""How long a process waits after its report for those of others: the first to end takes all down with it."""


class MonitoredPhase(StrEnum):
    """What the loop is waiting for."""

    SET_UP = "set up"
    FETCH = "wait for a batch"
    STEP = "training step"
    VALIDATE = "validation"
    EPOCH_END = "end of the epoch"


@dataclass(frozen=True, slots=True)
class LastProgress:
    """The last sign of life.

    Attributes:
        phase: What began then.
        epoch: From 0.
        batch: Within the epoch, from 0.
        since_s: Monotonic clock.
    """

    phase: MonitoredPhase
    epoch: int
    batch: int
    since_s: float


def stall_reason(progress: LastProgress, now_s: float, timeout_s: float) -> str | None:
    """Why the loop counts as stalled at `now_s`, or None while it does not."""
    waited_s = now_s - progress.since_s
    if waited_s < timeout_s:
        return None
    return (
        f"no progress for {waited_s:.0f} s (allowed {timeout_s:.0f} s) "
        f"in phase '{progress.phase}', epoch {progress.epoch}, batch {progress.batch}"
    )


class StallMonitor(Callback):
    """Ends a fit that makes no progress, after writing all stacks to `incidents/` in the run folder.

    Each process of a distributed fit watches itself: where one stalls, the others wait for it and end at about the same
    time. It is armed from set-up on, and before every wait for a batch. The process ends with exit code 75; the newest
    checkpoint stays, and `fit --resume` continues from it.

    Args:
        timeout_s: Seconds without progress that count as a stall. One batch, one validation batch, the metrics of a
            validation or a checkpoint must each take less.
    """

    def __init__(self, timeout_s: float = 900.0) -> None:
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s}, allowed are values above 0")
        self.timeout_s = timeout_s
        self._progress = LastProgress(MonitoredPhase.SET_UP, 0, 0, 0.0)
        self._folder: Path | None = None
        self._stacks: TextIO | None = None
        self._last_resort: LastResort | None = None
        self._stop = threading.Event()
        self._has_others = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Arm."""
        if stage != "fit":
            return
        incidents = Path(trainer.default_root_dir) / INCIDENTS
        suffix, self._has_others = rank_suffix(trainer.global_rank), trainer.world_size > 1
        for earlier in incidents.glob(f"{'[0-9]' * 8}-{'[0-9]' * 6}{suffix}"):  # of runs that were killed, not by us
            remove_incident_without_stacks(earlier)
        self._folder = incidents / f"{time.strftime('%Y%m%d-%H%M%S')}{suffix}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stacks = (self._folder / STACKS).open("w")
        except OSError as error:
            rank_zero_warn(f"could not write {self._folder} ({error.strerror}); stacks of a stall go to stderr")
            self._stacks = os.fdopen(os.dup(2), "w")
        self._stop = threading.Event()
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        self._last_resort = LastResort(self.timeout_s + GRACE_S, STACKS_SIGNAL)
        self._beat(trainer, MonitoredPhase.SET_UP)
        self._thread = threading.Thread(target=self._watch, args=(self._stop,), name="stall monitor", daemon=True)
        self._thread.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The first batch of the epoch is awaited next."""
        self._beat(trainer, MonitoredPhase.FETCH)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A batch has come."""
        self._beat(trainer, MonitoredPhase.STEP, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A step is done; the next batch is awaited."""
        self._beat(trainer, MonitoredPhase.FETCH, batch_idx + 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation workers start."""
        self._beat(trainer, MonitoredPhase.VALIDATE)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch is done."""
        self._beat(trainer, MonitoredPhase.VALIDATE, batch_idx + 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics are computed; the epoch's end follows."""
        self._beat(trainer, MonitoredPhase.EPOCH_END)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checkpoints follow."""
        self._beat(trainer, MonitoredPhase.EPOCH_END)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Disarm: the error is the message."""
        self._disarm()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Disarm."""
        self._disarm()

    def _beat(self, trainer: Trainer, phase: MonitoredPhase, batch: int = 0) -> None:
        if self._stacks is None:
            return
        self._progress = LastProgress(phase, trainer.current_epoch, batch, time.monotonic())

    def _disarm(self) -> None:
        self._stop.set()
        if self._stacks is None or self._folder is None:
            return
        assert self._last_resort is not None
        self._thread.join()  # the thread writes into the pipe of the last resort, and into the stacks
        self._last_resort.close()
        faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()
        self._stacks = None
        remove_incident_without_stacks(self._folder)

    def _watch(self, stop: threading.Event) -> None:
        assert self._last_resort is not None
        looked_s = counted_from_s = time.monotonic()
        while not stop.wait(min(1.0, self.timeout_s / 10)):
            self._last_resort.still_running(self.timeout_s + GRACE_S)
            now_s = time.monotonic()
            if now_s - looked_s > max(GAP_LEAST_S, GAP_SHARE * self.timeout_s):
                counted_from_s = now_s
            looked_s, progress = now_s, self._progress
            since_s = max(progress.since_s, counted_from_s)
            reason = stall_reason(replace(progress, since_s=since_s), now_s, self.timeout_s)
            if reason is not None:
                self._end_process(reason)

    def _end_process(self, reason: str) -> None:
        """Report first, then end: what stands still may not let itself be looked at."""
        assert self._stacks is not None
        assert self._folder is not None
        workers = {child.name: child.pid for child in multiprocessing.active_children()}
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._stacks.flush()
        report = asdict(self._progress) | {"reason": reason, "process": os.getpid(), "workers": workers}
        report |= {"launch": launch_id(), "attempt": restarts()}
        with suppress(OSError):
            (self._folder / "incident.json").write_text(json.dumps(report, indent=2) + "\n")
        hint = "continue with fit --resume" if has_checkpoint(self._folder.parent.parent) else "nothing was saved yet"
        print(f"\nstalled: {reason}; stacks in {self._folder}; {hint}", file=sys.stderr, flush=True)
        if self._has_others:
            time.sleep(OTHERS_REPORT_S)
        for process in workers.values():
            if process is not None:
                os.kill(process, signal.SIGKILL)
        os._exit(ExitCode.STALLED)


def remove_incident_without_stacks(folder: Path) -> None:
    """Delete the folder of an incident that never came, and the one above if nothing else is in it."""
    stacks = folder / STACKS
    if stacks.is_file() and stacks.stat().st_size == 0:
        stacks.unlink()
    for empty in (folder, folder.parent):
        with suppress(OSError):  # not empty, or another process of this run was first
            empty.rmdir()
