"""Job of a supervisor: settings, command lines, progress between two attempts, and the start, also detached."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

from yolo_lightning.supervision.fallback_levels import COMPUTATION_KEYS
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase, read_heartbeat
from yolo_lightning.supervision.live_heartbeat import heartbeat_of
from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.supervision.phase_timeouts import PhaseTimeouts
from yolo_lightning.supervision.program_growth import marks_of_files
from yolo_lightning.supervision.run_disk import saved_steps
from yolo_lightning.supervision.run_status import SupervisorStatus
from yolo_lightning.supervision.trainer import Output
from yolo_lightning.utils import run_files
from yolo_lightning.utils.choices import AUTO, settings_group
from yolo_lightning.utils.host import worker_count
from yolo_lightning.utils.nested_keys import nested
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.stop_signals import Stopped

JOB_VARIABLE = "YOLO_LIGHTNING_JOB"  # environment variable that contains the job of a supervisor
OUTPUT_POLL_S = 0.2  # of a detached supervisor
GPU_SMOKE_TEST = "import torch; torch.ones(1, device=torch.accelerator.current_accelerator() or 'cpu').sum().item()"


@settings_group(
    "supervision",
    **dict.fromkeys(("factor", "poll_s", "kill_wait_s", "part_timeout_s", "smoke_test_s"), "> 0"),
    **dict.fromkeys(("attempts", "patience_h"), "> 0"),
    **dict.fromkeys(("kill_after_s", "grace_s", "pause_s", "climb_after_h"), ">= 0"),
)
class SuperviseSettings:
    """Time limits and retries of the supervisor.

    Attributes:
        enabled: Restart the fit after hangs and crashes.
        phase_timeouts: Smallest timeout of each phase, seconds.
        factor: The timeout of a phase is at least this multiple of its longest duration in the run.
        poll_s: Seconds between two checks of the heartbeat.
        kill_after_s: Seconds from the detection of a stall to the kill; the trainer may still recover.
        grace_s: Seconds that the trainer has to save and exit after Ctrl-C or SIGTERM. Schedulers then send SIGKILL,
            SLURM after 30 s.
        kill_wait_s: Seconds to wait for the end of killed processes.
        part_timeout_s: Time limit of each part of an incident report, seconds.
        smoke_test_s: Time limit of the GPU smoke test, seconds, including the import of torch.
        attempts: Limit of consecutive failed attempts before the first step. Once the run has trained, this many
            attempts precede a lower fallback level after failures of unknown cause.
        pause_s: Seconds before the second consecutive restart without a new checkpoint. The first restart follows after
            1 s; each further pause is twice as long, up to 5 min.
        patience_h: Hours without a new checkpoint after the first failure, after which a run that has trained is given
            up. Until then, the supervisor waits for everything that is missing outside of the run.
        cpu_fallback: Whether the last fallback level of the computation trains on the CPU.
        climb_after_h: Hours without an incident after which one fallback level is taken back, loader first. Each level
            that fails again doubles the time. 0 keeps all levels.
        notify: Recipients of notifications.
    """

    enabled: bool = False
    phase_timeouts: PhaseTimeouts = field(default_factory=PhaseTimeouts)
    factor: float = 5.0
    poll_s: float = 1.0
    kill_after_s: float = 20.0
    grace_s: float = 20.0
    kill_wait_s: float = 5.0
    part_timeout_s: float = 10.0
    smoke_test_s: float = 120.0
    attempts: int = 3
    pause_s: float = 10.0
    patience_h: float = 24.0
    cpu_fallback: bool = False
    climb_after_h: float = 12.0
    notify: NotifySettings = field(default_factory=NotifySettings)


@dataclass(frozen=True, slots=True)
class Job:
    """Command lines of a supervised run, and settings of its supervisor."""

    command: tuple[str, ...]  # words of the first start, program included
    restart_command: tuple[str, ...]  # words of a start that resumes from the newest checkpoint of the run folder
    workers: int = 0  # configured loader workers
    settings: SuperviseSettings = field(default_factory=SuperviseSettings)
    smoke_test: tuple[str, ...] = ()  # words of a program that uses the GPU, run after a GPU stall; empty for none
    any_command: bool = False  # whether the command is not a `fit`: exit code 0 means that it has finished
    is_service: bool = False  # whether no person has started the command: a service after a boot
    checkpoints: str = ""  # absolute pattern of the checkpoint files of `any_command`; empty for none
    progress: str = ""  # absolute pattern of files whose growth replaces a heartbeat; empty for the program's output
    options: dict[str, Any] = field(default_factory=dict)  # configured computation, see `computation_levels`

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        content = json.loads(text)
        settings = SuperviseSettings(**content.pop("settings"))
        words = {name: tuple(content[name]) for name in ("command", "restart_command", "smoke_test")}
        return cls(**content | words | {"settings": settings})


def job(folder: Path, options: Mapping[str, Any]) -> Job:
    """Return the job of a supervisor for the fit in a run folder, whose options are in `spec.json`.

    Args:
        folder: Run folder.
        options: Options that the user has set, by full name.
    """
    workers = options.get("data.loader.num_workers", AUTO)
    return Job(
        command=fit_command(folder),
        restart_command=fit_command(folder, resume=True),
        workers=worker_count(workers) if isinstance(workers, int | str) else 0,  # the trainer refuses other types
        options={key: value for key, value in options.items() if key in COMPUTATION_KEYS},
        settings=supervise_settings(options),
        smoke_test=() if options.get("trainer.accelerator") == "cpu" else (sys.executable, "-c", GPU_SMOKE_TEST),
    )


def supervise_settings(options: Mapping[str, Any]) -> SuperviseSettings:
    """Return the settings `supervision.*`; raise a UserError for a wrong value."""
    prefix = "supervision."
    values = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
    return SuperviseSettings(**nested(values))


def fit_command(folder: Path, *, resume: bool = False) -> tuple[str, ...]:
    """Return the command line of a fit with the options in `spec.json` of a run folder."""
    words = (sys.executable, "-m", "yolo_lightning", "fit", f"--config={folder / run_files.SPEC_FILE}")
    if resume:
        return (*words, "--resume")
    return words


def saved_marks(run: Path, job: Job) -> frozenset[int]:
    """Return one number per checkpoint: trained steps for a fit, the time of the last change for another command."""
    if not job.any_command:
        return saved_steps(run)
    if not job.checkpoints:
        return frozenset()
    return frozenset(changed_ns for _, _, changed_ns in marks_of_files(job.checkpoints, run))


def has_saved(before: frozenset[int], after: frozenset[int]) -> bool:
    """Return whether an attempt has saved a step that had no checkpoint before the attempt.

    A smaller number of steps counts too: training was resumed before a damaged checkpoint, which the save has replaced.
    """
    return not after <= before


def can_resume(run: Path, job: Job) -> bool:
    """Return whether there is a checkpoint, so that the next attempt uses the restart command."""
    return bool(saved_marks(run, job)) if job.any_command else run_files.has_checkpoint(run)


def supervisor_command(run: Path, job: Job) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment of the supervisor of `job`.

    The job is passed in an environment variable, because it contains addresses for notifications, and all users can
    read a command line.
    """
    job = replace(job, settings=replace(job.settings, notify=job.settings.notify.resolved()))
    words = [sys.executable, "-m", "yolo_lightning.supervision", str(run.absolute())]
    return words, os.environ | {JOB_VARIABLE: job.to_json()}


def become_supervisor(run: Path, job: Job) -> NoReturn:
    """Replace this process by the supervisor of `job`. The process id stays, so signals and job control still work.

    The memory of this process, which includes torch, is freed.
    """
    words, environment = supervisor_command(run, job)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(words[0], words, environment)


def start_detached(run: Path, job: Job, wait_s: float) -> tuple[int, int | None]:
    """Start the supervisor of a job in a session of its own, and show its output until training has begun.

    Neither a log-out nor the end of the terminal reaches that session. Later output is in the log of the run folder
    only. Ctrl-C ends the wait, not the training.

    Args:
        run: Run folder.
        job: Job of the supervisor.
        wait_s: Longest wait for the first batch, seconds.

    Returns:
        The process id of the supervisor, and its exit code if it has ended already.
    """
    words, environment = supervisor_command(run, job)
    sys.stdout.flush()
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # as nohup; the trainer inherits this, too
    )
    assert process.stdout is not None
    output = Output(process.stdout, partial(os.write, 1))
    end_s = time.monotonic() + wait_s
    try:
        while time.monotonic() < end_s and not _trains(run, process.pid):
            output.pump(OUTPUT_POLL_S)
            if not output.is_open:  # no process holds the other end: the supervisor has ended
                return process.pid, process.wait()
    except (KeyboardInterrupt, Stopped):
        pass
    return process.pid, None


def _trains(run: Path, supervisor: int) -> bool:
    """Return whether the trainer of this supervisor has asked for its first batch."""
    status = SupervisorStatus.read(run / run_files.SUPERVISOR_FILE)
    if status is None or status.process != supervisor or not status.trainer:
        return False
    if status.process_started_ticks != started_ticks(supervisor):  # of an earlier process with the same id
        return False
    heartbeat = read_heartbeat(heartbeat_of(run), status.trainer)
    return isinstance(heartbeat, Heartbeat) and heartbeat.phase >= Phase.FIRST_BATCH
