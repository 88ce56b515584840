"""Command lines of the attempts of a supervised `fit`, and the start of its supervisor."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from yolo_lightning.supervision.settings import JOB_VARIABLE, Job, SuperviseSettings

RUN_FOLDER_OPTION = "--trainer.default_root_dir"
START_OPTIONS = ("--resume", "--ckpt_path", RUN_FOLDER_OPTION)
"""Options of the first attempt only; a restart begins at the newest checkpoint of its run folder."""

GPU_SMOKE_TEST = "import torch; torch.ones(1, device='cuda').sum().item()"


def job(words: Sequence[str], folder: Path, *, workers: int, settings: SuperviseSettings, on_gpu: bool) -> Job:
    """Return the job of a supervisor.

    Args:
        words: Command line of the fit, from the subcommand on.
        folder: Run folder of all attempts.
        workers: Configured loader workers.
        settings: Settings of the supervisor.
        on_gpu: Whether the fit uses a GPU, which is tested after a GPU stall.
    """
    program = (sys.executable, "-m", "yolo_lightning")
    return Job(
        command=(*program, *words, f"{RUN_FOLDER_OPTION}={folder}"),
        restart_command=(*program, *resume_words(words, folder)),
        workers=workers,
        settings=settings,
        smoke_test=(sys.executable, "-c", GPU_SMOKE_TEST) if on_gpu else (),
    )


def resume_words(words: Sequence[str], folder: Path) -> list[str]:
    """Return the command line, from the subcommand on, that resumes the run in `folder`."""
    kept: list[str] = []
    skips_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skips_value:
            skips_value = False
        elif name in START_OPTIONS:
            skips_value = name != "--resume" and not equals
        else:
            kept.append(word)
    return [*kept, f"{RUN_FOLDER_OPTION}={folder}", "--resume"]


def become_supervisor(run: Path, job: Job) -> NoReturn:
    """Replace this process by the supervisor of `job`. The process id stays, so signals and job control still work.

    The memory of this process, which includes torch, is freed. The job is passed in an environment variable, because it
    contains addresses for notifications, and all users can read a command line.
    """
    job = replace(job, settings=replace(job.settings, notify=job.settings.notify.resolved()))
    sys.stdout.flush()
    sys.stderr.flush()
    words = [sys.executable, "-m", "yolo_lightning.supervision", str(run.absolute())]
    os.execve(sys.executable, words, os.environ | {JOB_VARIABLE: job.to_json()})
