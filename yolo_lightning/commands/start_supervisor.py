"""What starts before torch is imported: the supervisor of a fit, or the fork server of the loader's workers.

The process that the user starts becomes the supervisor. Its training process parses and checks the command line.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.mirror import is_address
from yolo_lightning.commands.command_line import ToolParser
from yolo_lightning.commands.option_layers import given_options
from yolo_lightning.commands.unattended import detach
from yolo_lightning.data.worker_processes import start_fork_server
from yolo_lightning.supervision import SuperviseSettings, become_supervisor, is_supervised
from yolo_lightning.supervision.job import Job, job
from yolo_lightning.utils.addresses import refuse_secrets
from yolo_lightning.utils.distributed import launch_id
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.json_record import read_json
from yolo_lightning.utils.run_files import BEST_CHECKPOINT, CHECKPOINTS, FINISHED_FILE, has_checkpoint

MAX_EPOCHS = 100
"""Default of `trainer.max_epochs`."""

NO_TRAINING = ("-h", "--help", "--print_config")


def start_processes(words: Sequence[str]) -> None:
    """Become the supervisor of a fit, or start the fork server of the loader's workers, if the options require it.

    The fork server imports torch in the same seconds as this process. If a configuration file cannot be read, nothing
    is started, and the parser reports why.

    Args:
        words: Command line, from the subcommand on.
    """
    if words[:1] not in (["fit"], ["validate"], ["test"]):
        return
    try:
        options = given_options(words, os.environ).all
    except (OSError, ValueError):
        return
    if needs_supervisor(words, options):
        refuse_secrets(words)
        supervise_fit(words, options)
    loader = {name: options.get(f"data.loader.{name}", 1) for name in ("num_workers", "worker_threads")}
    forks = options.get("data.loader.multiprocessing_context") == "forkserver"
    if forks and loader["num_workers"] != 0 and loader["worker_threads"] == 1:
        start_fork_server(threads=1)


def needs_supervisor(words: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether the process of a command line must become the supervisor of a fit.

    Args:
        words: Command line, from the subcommand on.
        options: Options of the command line by full name.
    """
    if is_supervised() or launch_id() is not None or any(word.startswith(NO_TRAINING) for word in words):
        return False
    return words[:1] == ["fit"] and True in (options.get("supervision.enabled"), options.get("detach"))


def supervise_fit(words: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Select the run folder and become the supervisor of a fit; see `needs_supervisor` for the arguments.

    Raises:
        SystemExit: With code 0, if the run to resume is finished.
        ValueError: If there is no run to resume, or the run folder cannot be written.
    """
    folder, checkpoint = folder_of(options)
    if resumes(options):
        _end_if_finished(folder, options)
    run_folder.prepare(folder)
    if checkpoint is not None:
        words = [*words, f"--ckpt_path={checkpoint}"]
    made = job_of_fit(words, options, folder)
    if options.get("detach") is True:
        detach(folder, made)
    become_supervisor(folder, made)


def supervise_in(folder: Path, words: Sequence[str], options: Mapping[str, Any]) -> NoReturn:
    """Become the supervisor of a fit in exactly this run folder, from its newest checkpoint if it has one.

    Raises:
        SystemExit: With code 0, if the run is finished.
    """
    _end_if_finished(folder, options)
    made = job_of_fit(words, options, folder)
    become_supervisor(folder, replace(made, command=made.restart_command) if has_checkpoint(folder) else made)


def job_of_fit(words: Sequence[str], options: Mapping[str, Any], folder: Path) -> Job:
    """Return the job of the supervisor of a fit in `folder`."""
    workers = options.get("data.loader.num_workers", "auto")
    on_gpu = options.get("trainer.accelerator", "auto") != "cpu"
    number = worker_count(workers) if isinstance(workers, int | str) else 0  # the training process refuses other types
    settings = supervise_settings(options)
    return job(words, folder, workers=number, settings=settings, on_gpu=on_gpu, options=options)


def folder_of(options: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Return the run folder of a fit, and the checkpoint to resume from if the options name one."""
    base = run_folder.configured_folder(str(options.get("trainer.default_root_dir", run_folder.DEFAULT_RUN)))
    mirror, ckpt_path = options.get("mirror"), options.get("ckpt_path")
    if resumes(options):
        return run_folder.folder_to_resume(base, mirror), None
    checkpoint = None if ckpt_path is None or is_address(str(ckpt_path)) else Path(str(ckpt_path))
    if ckpt_path == "best" and (runs := run_folder.runs(base)):
        checkpoint = runs[0] / CHECKPOINTS / BEST_CHECKPOINT
    return run_folder.folder_to_fit(base, checkpoint, mirror), checkpoint


def resumes(options: Mapping[str, Any]) -> bool:
    """Return whether a fit resumes the newest run."""
    return bool(options.get("resume")) or options.get("ckpt_path") == "last"


def _end_if_finished(folder: Path, options: Mapping[str, Any]) -> None:
    """Print one line and exit with code 0 if all epochs of a run are trained."""
    try:
        done = int(read_json(folder / FINISHED_FILE)["epochs"])
    except (OSError, ValueError, TypeError, KeyError):
        return
    max_epochs = options.get("trainer.max_epochs", MAX_EPOCHS)
    if isinstance(max_epochs, int) and done >= max_epochs:
        print(training_finished(folder, done, max_epochs), file=sys.stderr)
        raise SystemExit(0)


def training_finished(folder: Path, done: int, max_epochs: int) -> str:
    return (
        f"{folder}: the training is finished, {done} of {max_epochs} epochs are done. "
        f"To train longer, set --trainer.max_epochs to {done + 1} or more."
    )


def supervise_settings(options: Mapping[str, Any]) -> SuperviseSettings:
    """Return the settings `supervision.*`, checked by a parser."""
    parser = ToolParser()
    parser.add_argument("--supervision", type=SuperviseSettings, default=SuperviseSettings())
    words = [
        f"--{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in options.items()
        if name.startswith("supervision.")
    ]
    settings = parser.instantiate_classes(parser.parse_args(words)).supervision
    assert isinstance(settings, SuperviseSettings)
    return settings
