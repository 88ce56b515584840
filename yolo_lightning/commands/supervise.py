"""Supervise any training command: restart the command after hangs and crashes."""

import shlex
import shutil
from pathlib import Path
from typing import NoReturn

from yolo_lightning.errors import UserError
from yolo_lightning.supervision.job import Job, SuperviseSettings, become_supervisor


def supervise(
    *,
    command: list[str],
    run: Path = Path("runs/supervised"),
    restart_options: str = "",
    checkpoints: str = "",
    progress: str = "",
    supervision: SuperviseSettings = SuperviseSettings(),  # noqa: B008 - frozen
) -> NoReturn:
    """Run a command, watch its heartbeat, and restart the command after hangs and crashes.

    The command has finished when it exits with code 0. See docs/supervise.md.

    Args:
        command: Words of the command; usually written after all options: `supervise --run RUN -- python train.py`.
        run: Folder for the log, the incident reports and the state of the supervisor.
        restart_options: Options that are appended to the command when it is restarted and a checkpoint exists.
        checkpoints: Pattern of the checkpoint files, for example 'out/*.pt'. A new or changed file is progress, which
            resets the limit of attempts.
        progress: Pattern of files, for example 'logs/*.txt', whose growth shows that a program without a heartbeat
            works. Without a pattern, the output of the program shows this. The limit is `phase_timeouts.import_s`.
        supervision: Timeouts, retries and notifications.
    """
    if not command:
        raise UserError("supervise needs a command after --, for example: supervise --run runs/a -- python train.py")
    if shutil.which(command[0]) is None:
        raise UserError(f"the command after -- must begin with a program, got {command[0]}, which does not exist")
    try:
        restart_command = (*command, *shlex.split(restart_options))
    except ValueError as error:
        raise UserError(f"--restart_options {restart_options!r} cannot be split into words: {error}") from error
    job = Job(
        command=tuple(command),
        restart_command=restart_command,
        settings=supervision,
        any_command=True,
        checkpoints=str(Path(checkpoints).absolute()) if checkpoints else "",
        progress=str(Path(progress).absolute()) if progress else "",
    )
    become_supervisor(run, job)
