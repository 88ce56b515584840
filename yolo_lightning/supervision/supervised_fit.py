"""What `fit` hands to a supervisor: the command lines of its attempts."""

import sys
from collections.abc import Sequence
from pathlib import Path

from yolo_lightning.supervision import Job, SuperviseSettings

RUN_FOLDER_OPTION = "--trainer.default_root_dir"
BEGINNINGS = ("--resume", "--ckpt_path")
"""Options that say where a fit begins; a restart begins at the newest checkpoint of its run folder."""

GPU_SMOKE_TEST = "import torch; torch.ones(1, device='cuda').sum().item()"


def job(words: Sequence[str], folder: Path, *, workers: int, settings: SuperviseSettings, on_gpu: bool) -> Job:
    """What a supervisor is to run.

    Args:
        words: The command line of the fit, from the subcommand on.
        folder: Run folder of all attempts.
        workers: Loader workers as configured.
        settings: How patient to be.
        on_gpu: Whether the fit uses a GPU, which then is asked for a sign of life after a stall.
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
    """Return the command line, from the subcommand on, that continues the run in `folder`."""
    return [*without_beginning(words), f"{RUN_FOLDER_OPTION}={folder}", "--resume"]


def without_beginning(words: Sequence[str]) -> list[str]:
    """The words without those of `BEGINNINGS` and of the run folder, and their values."""
    kept: list[str] = []
    skips_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if skips_value:
            skips_value = False
        elif name in (*BEGINNINGS, RUN_FOLDER_OPTION):
            skips_value = name != "--resume" and not equals
        else:
            kept.append(word)
    return kept
