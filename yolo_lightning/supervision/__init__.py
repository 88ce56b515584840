"""Watches a fit from outside, collects evidence, ends it cleanly, walks down the loader ladder, starts it again.

Loads neither torch nor Lightning: the supervisor holds no GPU, no threads and little memory. Read in this order::

    settings    what a supervisor is told           supervisor  the loop
    attendant   one attempt from start to end       run_disk    the run folder, also while its disk hangs
    helper      file access in a child process      live_record where the heartbeat lies
    trainer     starts one attempt                  output      what it prints
    watch       does it make progress?              processes   the process table, without ever waiting
    evidence    what can be seen of a stall         bounded     work that may never return
    classify    what kind of stall it is (pure)     incident    the report
    kill        ends all, leaves nothing            outcome     what an exit means; exit codes
    marks       files that belong to a process      run_lock    one trainer per run folder
    ladder      what to try next (pure)
    smoke_test  does the GPU answer?                run_files   what is read and cleared in the run folder
    announcer   says what happens                   standing    in the run folder, for who looks on
    messenger   to those who want to be told        notify      whom, and what (pure)
    notifier    sends it, as a process of its own   space       whether the disk is full
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from yolo_lightning.supervision.fallback import quarantined, rung_of_launch
from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.supervision.outcome import ExitCode
from yolo_lightning.supervision.process_marks import mark_process, remove_files_of_dead_processes
from yolo_lightning.supervision.run_lock import RunInUseError, run_lock
from yolo_lightning.supervision.settings import Job, SuperviseSettings
from yolo_lightning.supervision.trainer import end_with_launcher, is_supervised, remove_temporary_folder

__all__ = [
    "ExitCode",
    "Job",
    "NotifySettings",
    "RunInUseError",
    "SuperviseSettings",
    "become_supervisor",
    "end_with_launcher",
    "is_supervised",
    "mark_process",
    "quarantined",
    "remove_files_of_dead_processes",
    "remove_temporary_folder",
    "run_lock",
    "rung_of_launch",
]


def become_supervisor(run: Path, job: Job) -> NoReturn:
    """Turn this process into the supervisor of `job`: same id, so that signals and job control go on to work.

    What the process has loaded so far, torch among it, is given back.

    Args:
        run: Run folder.
        job: What to run. Addresses to be notified go by the environment, which only their owner can read: a command
            line can be read by anybody.

    Raises:
        ValueError: If such an address is a variable's that is not set, or needs a package that is not installed.
    """
    notify, variables = job.settings.notify.with_references()
    job = replace(job, settings=replace(job.settings, notify=notify))
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "yolo_lightning.supervision", str(run.absolute()), job.to_json()]
    os.execve(sys.executable, words, os.environ | variables)
