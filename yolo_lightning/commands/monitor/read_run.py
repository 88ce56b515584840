"""Reads the state of a run from its folder and the process table. Writes nothing and waits for no process."""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import checksum_path, read_checksum
from yolo_lightning.commands.monitor.run_state import Checkpoint, Facts, RunState, judge
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.heartbeat import Heartbeat, Phase, read_heartbeat
from yolo_lightning.supervision.incident import IncidentReport, read_incident
from yolo_lightning.supervision.live_heartbeat import heartbeat_of
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.processes import loader_workers
from yolo_lightning.supervision.rank_status import read_ranks
from yolo_lightning.supervision.run_status import Status, SupervisorStatus, read_status, remaining
from yolo_lightning.supervision.unsaved_checkpoint import read_unsaved
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.plain_text import name_some, one_line
from yolo_lightning.utils.process_identity import read_process
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    FINISHED_FILE,
    HEARTBEAT_FILE,
    INCIDENT_FILE,
    INCIDENTS,
    LAST_CHECKPOINT,
    METRICS,
    PHASE_TIMEOUTS_FILE,
    STATUS_FILE,
    SUPERVISOR_FILE,
)
from yolo_lightning.utils.sensors import SensorReadings
from yolo_lightning.utils.suggestions import missing

TRACES = (HEARTBEAT_FILE, STATUS_FILE, SUPERVISOR_FILE, FINISHED_FILE, METRICS, CHECKPOINTS)
"""A run folder contains at least one of these."""

RUNS = "runs"
"""Folder of the runs in the working folder, as in the configurations."""

SIGNS = (HEARTBEAT_FILE, STATUS_FILE, METRICS)  # files that are written during training

INCIDENTS_SHOWN = 4
CHECKPOINTS_SHOWN = 4
MISSED_WRITINGS = 3
"""A trainer on another machine counts as gone if its status file is older than so many write intervals."""


def read_run(folder: Path, machine: SensorReadings | None = None) -> RunState:
    """Return the state of the run in `folder`, with the given readings of the sensors."""
    check_holds_run(folder)
    now_s = time.time()
    heartbeat_path = heartbeat_of(folder)
    heartbeat_or_problem = read_heartbeat(heartbeat_path)
    heartbeat = heartbeat_or_problem if isinstance(heartbeat_or_problem, Heartbeat) else None
    status = read_status(folder / STATUS_FILE)
    standing = SupervisorStatus.read(folder / SUPERVISOR_FILE)
    trainer, lives = _find_trainer(heartbeat, status, standing, now_s)
    waited_s = _seconds_since_heartbeat(heartbeat, status, now_s) if lives else None
    timeouts = _timeouts_of(folder, heartbeat)
    facts = Facts(
        now_s=now_s,
        heartbeat=heartbeat_or_problem,
        trainer_lives=lives,
        waited_s=waited_s,
        timeouts=timeouts,
        finished_s=_time_of(folder / FINISHED_FILE),
        standing=standing,
        supervisor_lives=_supervisor_lives(standing),
        last_sign_s=max(filter(None, (_time_of(folder / name) for name in SIGNS)), default=None),
    )
    state = RunState(
        folder=str(folder),
        now_s=now_s,
        judgement=judge(facts),
        phase_s=waited_s,
        batch=_trained_batches(heartbeat, status),
        ranks=tuple(read_ranks(folder)) if lives else (),
        status=status,
        standing=standing,
        incidents=tuple(incidents(folder / INCIDENTS)),
        unsaved=read_unsaved(heartbeat_path),
        machine=machine or SensorReadings(),
    )
    if status is not None:
        state = replace(state, epoch=status.epoch, step=status.step)
    if heartbeat is not None:
        phase = heartbeat.phase
        step = max(heartbeat.step, state.step or 0)
        timeout_s = timeouts.seconds(phase)
        state = replace(state, phase=phase, phase_timeout_s=timeout_s, epoch=heartbeat.epoch, step=step)
    if status is not None:
        position = (state.epoch or 0, state.batch or 0, state.phase)
        time_left = remaining(status, status.step_s, status.validation_s, *position)
        state = replace(state, remaining=time_left)
    if lives and (status is None or _is_here(status.host)):
        state = replace(state, trainer=read_process(trainer), workers=tuple(loader_workers(trainer)))
    saved = checkpoints(folder / CHECKPOINTS, now_s)
    damaged = _damaged_files(folder, status, standing, saved)
    return replace(state, checkpoints=tuple(saved[:CHECKPOINTS_SHOWN]), damaged=tuple(damaged))


def _timeouts_of(folder: Path, heartbeat: Heartbeat | None) -> AdaptiveTimeouts:
    """Return the timeouts of the phases, extended by the durations in the heartbeat."""
    timeouts = read_record(folder / PHASE_TIMEOUTS_FILE, AdaptiveTimeouts) or AdaptiveTimeouts(PhaseTimeouts(), {})
    if heartbeat is None:
        return timeouts
    return timeouts.learn(heartbeat.longest_s, 0.0)


def _supervisor_lives(standing: SupervisorStatus | None) -> bool:
    """Return whether the supervisor runs on this machine."""
    if standing is None or not _is_here(standing.host):
        return False
    return _lives_since(standing.process, standing.process_started_ticks)


def _damaged_files(
    folder: Path, status: Status | None, standing: SupervisorStatus | None, saved: Sequence[Checkpoint]
) -> list[str]:
    """Return a sentence for each report that exists and cannot be read, and for each damaged checkpoint."""
    damaged = []
    if status is None and os.path.lexists(folder / STATUS_FILE):
        damaged.append(f"{STATUS_FILE} is damaged: speed, ETA and scores are unknown")
    if standing is None and os.path.lexists(folder / SUPERVISOR_FILE):
        damaged.append(f"{SUPERVISOR_FILE} is damaged: restarts and level are unknown")
    damaged += [f"{checkpoint.name} or its checksum file is damaged" for checkpoint in saved if checkpoint.is_damaged]
    return damaged


def check_holds_run(folder: Path) -> None:
    """Raise a `UserError` if a folder does not exist or contains no run."""
    if not folder.is_dir():
        raise UserError(f"The run folder {folder} {missing(folder)} {_existing_runs(Path())}")
    if not _holds_run(folder):
        problem = f"The folder {folder} contains no run: it has none of {', '.join(TRACES)}."
        raise UserError(f"{problem} {_existing_runs(folder)}")


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder and in its folder `runs`, by name."""
    folders: list[Path] = []
    for place in (folder, folder / RUNS):
        with suppress(OSError):  # no such folder, or no permission
            folders += sorted(path for path in place.iterdir() if _holds_run(path))
    return folders


def _holds_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).exists() for name in TRACES)


def _existing_runs(folder: Path) -> str:
    """Return a sentence with the first runs of a folder, or the option that names a run folder."""
    runs = [one_line(str(path)) for path in find_runs(folder)]
    if not runs:
        return "Pass the value of trainer.default_root_dir."
    return f"Existing runs: {name_some(runs)}."


def _find_trainer(
    heartbeat: Heartbeat | None, status: Status | None, standing: SupervisorStatus | None, now_s: float
) -> tuple[int, bool]:
    """Return the process id of the trainer, 0 if unknown, and whether that process lives.

    If the heartbeat file is unreadable, the process id comes from the status file or from the supervisor's file.
    """
    if status is not None and not _is_here(status.host):
        return status.process, now_s < status.written_s + MISSED_WRITINGS * status.interval_s
    if heartbeat is not None:
        return heartbeat.process, _lives_since(heartbeat.process, heartbeat.process_started_ticks)
    if status is not None and _lives_since(status.process, status.process_started_ticks):
        return status.process, True
    # A trainer ends with its supervisor. After a power cut, its id can belong to another process.
    if standing is not None and standing.trainer and _supervisor_lives(standing):
        return standing.trainer, read_process(standing.trainer) is not None
    return 0, False


def _is_here(host: str) -> bool:
    """Return whether `host` is this machine. Processes of other machines cannot be seen."""
    return host == socket.gethostname()


def _lives_since(pid: int, started_ticks: int) -> bool:
    """Return whether the process with this start time (clock ticks since boot, 0 for any) still runs."""
    process = read_process(pid)
    return process is not None and not process.is_gone and started_ticks in (0, process.started_ticks)


def _seconds_since_heartbeat(heartbeat: Heartbeat | None, status: Status | None, now_s: float) -> float | None:
    """Return the age of the heartbeat; for another machine, whose monotonic clock differs, of the status file."""
    if status is not None and not _is_here(status.host):
        return max(0.0, now_s - status.written_s - status.interval_s)
    if heartbeat is None:
        return None
    return max(0.0, time.monotonic() - heartbeat.phase_began_s)


def _trained_batches(heartbeat: Heartbeat | None, status: Status | None) -> int | None:
    """Return the batches trained in the epoch; during a validation, the heartbeat counts its batches instead."""
    if heartbeat is not None and heartbeat.phase in (Phase.FETCH, Phase.STEP):
        return heartbeat.batch
    if status is None:
        return None
    ends = heartbeat is not None and heartbeat.phase in (Phase.VALIDATE, Phase.METRICS, Phase.EPOCH_END)
    if ends and status.validations_per_epoch == 1:
        return status.batches_per_epoch
    return status.batch


def checkpoints(folder: Path, now_s: float) -> list[Checkpoint]:
    """Return the checkpoints, newest first; `last.ckpt` only if it is not a hard link to another one."""
    by_file: dict[tuple[int, int], Checkpoint] = {}
    for path in sorted(folder.glob("*.ckpt"), key=lambda path: path.name == LAST_CHECKPOINT):
        with suppress(OSError):  # replaced since the listing
            stat = path.stat()
            checkpoint = Checkpoint(one_line(path.name), max(0.0, now_s - stat.st_mtime), stat.st_size, steps=None)
            checksum = read_checksum(path)
            if checksum is not None:
                checkpoint = replace(checkpoint, steps=checksum.steps, is_damaged=checksum.bytes != stat.st_size)
            elif checksum_path(path).exists():
                checkpoint = replace(checkpoint, is_damaged=True)
            by_file.setdefault((stat.st_dev, stat.st_ino), checkpoint)
    return sorted(by_file.values(), key=lambda checkpoint: checkpoint.steps or 0, reverse=True)


def incidents(folder: Path) -> list[IncidentReport]:
    """Return the latest incident reports, oldest first."""
    reports = []
    for path in sorted(folder.glob(f"*/{INCIDENT_FILE}"))[-INCIDENTS_SHOWN:]:
        try:
            report = read_incident(path)
        except (OSError, ValueError) as error:
            sentence = one_line(f"{path} cannot be read: {error}")
            report = IncidentReport(_time_of(path) or 0.0, "unknown", sentence, "", None, one_line(path.parent.name))
        reports.append(report)
    return reports


def _time_of(path: Path) -> float | None:
    """Return when a file was last modified, in seconds since 1970; None if it does not exist."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
