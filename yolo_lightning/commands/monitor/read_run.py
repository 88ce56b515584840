"""Reads what a run folder and the process table tell about a run. Writes nothing, waits for nobody."""

import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from yolo_lightning.checkpoints.run_folder import CHECKPOINTS, INCIDENTS, LAST_CHECKPOINT, METRICS
from yolo_lightning.commands.monitor.judgement import Facts, judge
from yolo_lightning.commands.monitor.run_state import Checkpoint, PastIncident, Remaining, RunState, SensorReadings
from yolo_lightning.commands.monitor.time_left import remaining
from yolo_lightning.supervision.heartbeat import (
    ALLOWANCES_FILE,
    FINISHED_FILE,
    PROGRESS_FILE,
    Blind,
    Phase,
    Progress,
    ProgressReader,
    started_ticks,
)
from yolo_lightning.supervision.live_heartbeat import record_of
from yolo_lightning.supervision.phase_timeouts import Allowances, Floors
from yolo_lightning.supervision.run_files import INCIDENT_FILE
from yolo_lightning.supervision.run_status import STATUS_FILE, Status, read_status
from yolo_lightning.supervision.state_file import STANDING_FILE, Standing
from yolo_lightning.utils import sensors

TRACES = (PROGRESS_FILE, STATUS_FILE, STANDING_FILE, FINISHED_FILE, METRICS, CHECKPOINTS)
"""A run has left at least one of them."""

SIGNS = (PROGRESS_FILE, STATUS_FILE, METRICS)
"""Written while it trains."""

INCIDENTS_SHOWN = 4
CHECKPOINTS_SHOWN = 4
MISSED_WRITINGS = 3
"""A trainer on another machine counts as gone when its status is so many intervals late."""


def read_run(folder: Path, machine: SensorReadings | None = None) -> RunState:
    """All that is known now.

    Args:
        folder: Run folder.
        machine: What the sensors say.

    Raises:
        ValueError: If the folder is not there, or holds no run.
    """
    check_holds_run(folder)
    now_s = time.time()
    found = ProgressReader(record_of(folder)).read()
    status, standing = read_status(folder / STATUS_FILE), Standing.read(folder / STANDING_FILE)
    trainer, lives = trainer_of(found, status, standing, now_s)
    progress = found if isinstance(found, Progress) else None
    allowances = Allowances.read(folder / ALLOWANCES_FILE) or Allowances(Floors(), {})
    if progress is not None:
        allowances = allowances.learn(progress.longest_s, 0.0)
    waited_s = waited(progress, status, now_s) if lives else None
    facts = Facts(
        now_s=now_s,
        found=found,
        trainer_lives=lives,
        waited_s=waited_s,
        allowances=allowances,
        finished_s=time_of(folder / FINISHED_FILE),
        standing=standing,
        supervisor_lives=standing is not None
        and is_alive(standing.process, standing.process_started_ticks, standing.host),
        last_sign_s=max((sign for name in SIGNS if (sign := time_of(folder / name)) is not None), default=None),
    )
    judgement = judge(facts)
    phase = progress.phase if progress is not None else None
    batch = trained_batches(progress, status)
    epoch = progress.epoch if progress is not None else status.epoch if status is not None else None
    here = status is None or is_here(status.host)
    return RunState(
        folder=str(folder),
        now_s=now_s,
        judgement=judgement,
        phase=phase,
        phase_s=waited_s,
        allowance_s=allowances.seconds(phase) if phase is not None else None,
        epoch=epoch,
        batch=batch,
        step=max(progress.step if progress else 0, status.step if status else 0) if progress or status else None,
        trainer=sensors.process(trainer) if lives and here else None,
        workers=tuple(sensors.loader_workers(trainer)) if lives and here else (),
        status=status,
        standing=standing,
        remaining=remaining(status, epoch or 0, batch or 0, phase) if status is not None else Remaining(),
        checkpoints=tuple(checkpoints(folder / CHECKPOINTS, now_s)[:CHECKPOINTS_SHOWN]),
        incidents=tuple(incidents(folder / INCIDENTS)),
        machine=machine or SensorReadings(),
    )


def check_holds_run(folder: Path) -> None:
    """Refuse what is no run folder.

    Raises:
        ValueError: If it is none; the message says what is missing.
    """
    if not folder.is_dir():
        raise ValueError(f"run folder {folder} does not exist: give the folder that --trainer.default_root_dir named")
    if not any((folder / name).exists() for name in TRACES):
        raise ValueError(f"{folder} holds no run: none of {', '.join(TRACES)} is there")


def trainer_of(
    found: Progress | Blind, status: Status | None, standing: Standing | None, now_s: float
) -> tuple[int, bool]:
    """Process id of the trainer, 0 for unknown, and whether it lives.

    Where the record says nothing, what the trainer or its supervisor has said in other files names the process.
    """
    if status is not None and not is_here(status.host):
        return status.process, now_s < status.written_s + MISSED_WRITINGS * status.interval_s
    if isinstance(found, Progress):
        return found.process, is_same_process(found.process, found.process_started_ticks)
    if status is not None and is_same_process(status.process, status.process_started_ticks):
        return status.process, True
    if standing is not None and standing.trainer and is_here(standing.host):
        return standing.trainer, sensors.process(standing.trainer) is not None
    return 0, False


def is_alive(pid: int, ticks: int, host: str) -> bool:
    """Whether a process of this machine lives; of another one's that cannot be told, and it counts as gone."""
    return is_here(host) and is_same_process(pid, ticks)


def is_here(host: str) -> bool:
    """Whether this is that machine."""
    return host == socket.gethostname()


def is_same_process(pid: int, ticks: int) -> bool:
    """Whether the process that was started then lives; one that has ended and was not asked for its code does not."""
    one = sensors.process(pid)
    return one is not None and one.state not in sensors.GONE and ticks in (0, started_ticks(pid))


def waited(progress: Progress | None, status: Status | None, now_s: float) -> float | None:
    """Seconds since the last beat; on another machine, whose clock the record counts in, since the last status."""
    if status is not None and not is_here(status.host):
        return max(0.0, now_s - status.written_s - status.interval_s)
    return None if progress is None else max(0.0, time.monotonic() - progress.phase_began_s)


def trained_batches(progress: Progress | None, status: Status | None) -> int | None:
    """Batches trained in the epoch; the record counts those of the validation while there is one."""
    if progress is not None and progress.phase in (Phase.FETCH, Phase.STEP):
        return progress.batch
    if status is None:
        return None
    ends = progress is not None and progress.phase in (Phase.VALIDATE, Phase.METRICS, Phase.EPOCH_END)
    return status.batches_per_epoch if ends and status.validations_per_epoch == 1 else status.batch


def checkpoints(folder: Path, now_s: float) -> list[Checkpoint]:
    """Newest first; `last.ckpt` only where it is not another name of one of them."""
    found: dict[tuple[int, int], tuple[int, Checkpoint]] = {}
    for path in sorted(folder.glob("*.ckpt"), key=lambda path: path.name == LAST_CHECKPOINT):
        try:
            about = path.stat()
        except OSError:  # replaced just now
            continue
        steps = read_json(path.with_name(f"{path.name}.json")).get("steps")
        one = Checkpoint(path.name, max(0.0, now_s - about.st_mtime), about.st_size, steps)
        found.setdefault((about.st_dev, about.st_ino), (steps or 0, one))
    return [one for _, one in sorted(found.values(), key=lambda pair: -pair[0])]


def incidents(folder: Path) -> list[PastIncident]:
    """The last few, oldest first; a supervisor and a trainer that watches itself write different reports."""
    found = []
    for path in sorted(folder.glob(f"*/{INCIDENT_FILE}"))[-INCIDENTS_SHOWN:]:
        report = read_json(path)
        if report:
            found.append(
                PastIncident(
                    time_s=parse_time(report.get("time")) or time_of(path) or 0.0,
                    kind=str(report.get("class", "stall")),
                    sentence=str(report.get("sentence", report.get("reason", ""))),
                    outcome=str(report.get("outcome", "the process was ended" if "reason" in report else "")),
                )
            )
    return found


def parse_time(text: Any) -> float | None:
    """Seconds since 1970 of a time with its zone; None where it is none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, TypeError):
        return None


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def time_of(path: Path) -> float | None:
    """When a file was written last, seconds since 1970; None without one."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None
