"""Callback that ends a stalled fit without a supervisor.

The callback uses the heartbeat and the stall detection of the supervisor, inside the training process. A thread writes
the incident report and ends the loader's workers, which would survive the end of their parent. While a C call holds the
interpreter lock, the thread cannot run; a small process (`last_resort`) then ends the training process. Neither counts
time in which the process was suspended.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile
from yolo_lightning.supervision import is_supervised
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.heartbeat import STACKS_SIGNAL
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.last_resort import LastResort
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.watch import Health, Look, Watch
from yolo_lightning.utils.distributed import launch_id, rank_suffix, restarts
from yolo_lightning.utils.run_files import INCIDENT_FILE, INCIDENTS, has_checkpoint

EXIT_STALLED = 75
"""Exit code of a process that was ended because it stalled (EX_TEMPFAIL: try again)."""

STACKS = "stacks.txt"
GRACE_S = 20.0
"""Seconds after the timeout of the thread at which `last_resort` ends the process."""

OTHERS_REPORT_S = 5.0
"""Seconds between the report and the end of a process, for the reports of other ranks: torchrun ends all."""


class StallMonitor(Callback):
    """Ends a fit without progress, after writing all stacks to `incidents/` in the run folder.

    Each process of a distributed fit monitors itself: if one process stalls, the other processes wait for it and end at
    about the same time. The process ends with exit code 75; `fit --resume` continues from the newest checkpoint. Under
    a supervisor, which detects stalls itself, the callback does nothing.

    Args:
        timeout_s: Seconds without a heartbeat that count as a stall. One batch, one validation batch, the metrics of a
            validation or a checkpoint must each take less.
    """

    def __init__(self, timeout_s: float = 900.0) -> None:
        if not timeout_s > 0:
            raise ValueError(f"StallMonitor.timeout_s must be > 0, got {timeout_s}")
        self.timeout_s = timeout_s
        self._folder = Path()
        self._stacks: TextIO | None = None
        self._stop = threading.Event()
        self._has_others = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or is_supervised():
            return
        source = next((one for one in trainer.callbacks if isinstance(one, HeartbeatFile)), None)  # type: ignore[attr-defined]
        if source is None:
            raise ValueError("StallMonitor needs the callback HeartbeatFile before it in trainer.callbacks")
        if source.writer is None:  # HeartbeatFile has warned
            return
        incidents = Path(trainer.default_root_dir) / INCIDENTS
        suffix, self._has_others = rank_suffix(trainer.global_rank), trainer.world_size > 1
        for earlier in incidents.glob(f"{'[0-9]' * 8}-{'[0-9]' * 6}{suffix}"):  # of runs that were killed
            remove_incident_without_stacks(earlier)
        self._folder = incidents / f"{time.strftime('%Y%m%d-%H%M%S')}{suffix}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._stacks = (self._folder / STACKS).open("w")
        except OSError as error:
            rank_zero_warn(f"could not write {self._folder} ({error.strerror}); stacks of a stall go to stderr")
            self._stacks = os.fdopen(os.dup(2), "w")
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        self._last_resort = LastResort(self.timeout_s + GRACE_S, STACKS_SIGNAL)
        self._stop = threading.Event()
        poll_s = min(1.0, self.timeout_s / 10)
        self.watch = Watch(source.writer.read, lambda: None, uniform_timeouts(self.timeout_s), poll_s)
        self._thread = threading.Thread(target=self._run, args=(poll_s,), name="stall monitor", daemon=True)
        self._thread.start()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._disarm()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._disarm()

    def _disarm(self) -> None:
        self._stop.set()
        if self._stacks is None:
            return
        self._thread.join()  # the thread writes to `last_resort` and to the stacks
        self._last_resort.close()
        faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()
        self._stacks = None
        remove_incident_without_stacks(self._folder)

    def _run(self, poll_s: float) -> None:
        while not self._stop.wait(poll_s):
            self._last_resort.still_running(self.timeout_s + GRACE_S)
            look = self.watch.look()
            if look.health is Health.STALLED:
                self._end_process(look)

    def _end_process(self, look: Look) -> None:
        """Write the report, then end the process."""
        assert self._stacks is not None
        workers = {child.name: child.pid for child in multiprocessing.active_children()}
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        self._stacks.flush()
        diagnosis = Diagnosis(StallClass.UNKNOWN, f"the timeout is {look.timeout_s:g} s")
        incident = Incident(self._folder, look.phase, look.heartbeat, diagnosis, look.waited_s)
        further = {"workers": workers, "launch": launch_id(), "attempt": restarts()}
        with suppress(OSError):
            report = incident.report(f"the process ended itself with exit code {EXIT_STALLED}", **further)
            (self._folder / INCIDENT_FILE).write_text(report)
        hint = "continue with fit --resume" if has_checkpoint(self._folder.parent.parent) else "nothing was saved yet"
        print(f"\nstalled: {incident.sentence()}; stacks in {self._folder}; {hint}", file=sys.stderr, flush=True)
        if self._has_others:
            time.sleep(OTHERS_REPORT_S)
        for process in workers.values():
            if process is not None:
                os.kill(process, signal.SIGKILL)
        os._exit(EXIT_STALLED)


def uniform_timeouts(seconds: float) -> AdaptiveTimeouts:
    """Return the same timeout for all phases."""
    return AdaptiveTimeouts(PhaseTimeouts(**{field.name: seconds for field in fields(PhaseTimeouts)}), {})


def remove_incident_without_stacks(folder: Path) -> None:
    """Delete an incident folder with empty stacks, and its parent if nothing else is in it."""
    stacks = folder / STACKS
    if stacks.is_file() and stacks.stat().st_size == 0:
        stacks.unlink()
    for empty in (folder, folder.parent):
        with suppress(OSError):  # not empty, or already deleted by another process of this run
            empty.rmdir()
