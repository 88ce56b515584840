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
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from yolo_lightning.callbacks.heartbeat_file import HeartbeatFile
from yolo_lightning.supervision import is_supervised
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.heartbeat import Heartbeat, NoHeartbeat
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.last_resort import LastResort
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.watch import Health, Look, Watch
from yolo_lightning.utils.distributed import launch_id, rank_suffix, restarts
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.run_files import INCIDENT_FILE, STACKS_FILE, has_checkpoint, incident_folder, incident_names

GRACE_S = 20.0
"""Seconds after the timeout of the thread at which `last_resort` ends the process."""

GAP_SHARE = 0.1
"""A thread that did not run for this share of the timeout was suspended with its process."""

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
        self._stop: threading.Event | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or is_supervised():
            return
        source = next((one for one in trainer.callbacks if isinstance(one, HeartbeatFile)), None)  # type: ignore[attr-defined]
        if source is None:
            raise ValueError("StallMonitor needs the callback HeartbeatFile before it in trainer.callbacks")
        if source.writer is None:  # HeartbeatFile has warned
            return
        self._run, self._writer = Path(trainer.default_root_dir), source.writer
        self._suffix, self._has_others = rank_suffix(trainer.global_rank), trainer.world_size > 1
        try:
            self._writer.arm_stacks()
        except OSError as error:
            rank_zero_warn(f"no stacks after a stall inside a C call: {error}")
        self._last_resort = LastResort(self.timeout_s + GRACE_S, self._run, self._writer.path, self._suffix)
        poll_s = min(1.0, self.timeout_s / 10)
        self.watch = watch_with(self.timeout_s, self._writer.read, poll_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(self._stop, poll_s), name="stall monitor", daemon=True)
        self._thread.start()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._stop is not None:
            self._stop.set()
            self._thread.join()  # the thread writes to `last_resort`
            self._last_resort.close()
            self._writer.disarm_stacks()
            self._stop = None

    def _poll(self, stop: threading.Event, poll_s: float) -> None:
        while not stop.wait(poll_s):
            self._last_resort.still_running(self.timeout_s + GRACE_S)
            look = self.watch.look()
            if look.health is Health.STALLED:
                self._end_process(look)

    def _end_process(self, look: Look) -> None:
        """Write stacks and report, then end the process."""
        folder = incident_folder(self._run, incident_names(self._run), self._suffix)
        workers = {child.name: child.pid for child in multiprocessing.active_children()}
        diagnosis = Diagnosis(StallClass.UNKNOWN, f"the timeout is {look.timeout_s:g} s")
        incident = Incident(folder, look.phase, look.heartbeat, diagnosis, look.waited_s)
        where = f"stacks in {folder}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / STACKS_FILE).open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
            outcome = f"the process ended itself with exit code {ExitCode.STALLED}"
            report = incident.report(outcome, workers=workers, launch=launch_id(), attempt=restarts())
            (folder / INCIDENT_FILE).write_text(report)
        except OSError as error:
            where = f"could not write {folder} ({error.strerror})"
            faulthandler.dump_traceback(all_threads=True)
        hint = "continue with fit --resume" if has_checkpoint(self._run) else "nothing was saved yet"
        print(f"\nstalled: {incident.sentence()}; {where}; {hint}", file=sys.stderr, flush=True)
        if self._has_others:
            time.sleep(OTHERS_REPORT_S)
        for process in filter(None, workers.values()):
            os.kill(process, signal.SIGKILL)
        os._exit(ExitCode.STALLED)


def watch_with(timeout_s: float, read: Callable[[], Heartbeat | NoHeartbeat], poll_s: float) -> Watch:
    """Return a stall detection with the same timeout for all phases."""
    minimum = PhaseTimeouts(**{field.name: timeout_s for field in fields(PhaseTimeouts)})
    watch = Watch(read, lambda: None, AdaptiveTimeouts(minimum, {}), poll_s)
    watch.gap_s = max(watch.gap_s, GAP_SHARE * timeout_s)  # a C call can hold the interpreter lock for some time
    return watch
