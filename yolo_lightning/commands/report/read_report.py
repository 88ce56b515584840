"""Reads a run folder for the report. Writes nothing, asks no process; what is damaged is named and left out."""

import re
import time
from dataclasses import asdict
from pathlib import Path

from yolo_lightning.commands.monitor.read_run import check_holds_run, checkpoints, time_of
from yolo_lightning.commands.report.configuration import batch_size, readable_configuration
from yolo_lightning.commands.report.contents import Contents, IncidentSummary
from yolo_lightning.commands.report.evaluations import STAGES, evaluation
from yolo_lightning.commands.report.metrics_curves import Metrics, read_metrics
from yolo_lightning.commands.report.problems import Problems, read_object
from yolo_lightning.supervision.incident import read_incident
from yolo_lightning.supervision.state_file import Standing
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    ENVIRONMENT,
    FINISHED_FILE,
    HEARTBEAT_FILE,
    INCIDENT_FILE,
    INCIDENTS,
    METRICS,
    STATUS_FILE,
    SUPERVISOR_FILE,
    TENSORBOARD,
)

EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d{9,11})\.")
"""Its name says when it was begun, seconds since 1970; every start of training begins one."""

MOST_INCIDENTS = 200


def read_contents(folder: Path) -> Contents:
    """All that the folder tells.

    Raises:
        ValueError: If the folder is not there, or holds no run.
    """
    check_holds_run(folder)
    folder = folder.resolve()
    problems = Problems(folder)
    metrics = problems.attempt(folder / METRICS, read_metrics) or Metrics({})
    if metrics.unreadable:
        problems.add(folder / METRICS, f"has {metrics.unreadable} lines that cannot be understood")
    configurations = {
        path.name: text
        for path in sorted(folder.glob("config*.yaml"))
        if (text := problems.attempt(path, readable_configuration)) is not None
    }
    environment = problems.attempt(folder / ENVIRONMENT, read_object) or {}
    now_s = time.time()
    signs = [time_of(folder / name) for name in (HEARTBEAT_FILE, STATUS_FILE, METRICS, FINISHED_FILE)]
    return Contents(
        name=folder.name,
        read_s=now_s,
        state=state(folder),
        metrics=metrics,
        evaluations=tuple(one for stage in STAGES if (one := evaluation(folder, stage, metrics, problems)) is not None),
        starts_s=starts(folder / TENSORBOARD),
        last_sign_s=max((sign for sign in signs if sign is not None), default=None),
        incidents=tuple(incidents(folder / INCIDENTS, problems)),
        checkpoints=tuple(checkpoints(folder / CHECKPOINTS, now_s)),
        environment={name: str(value) for name, value in environment.items()},
        configurations=configurations,
        batch_size=problems.attempt(folder / "config.yaml", batch_size),
        problems=tuple(problems.sentences),
    )


def state(folder: Path) -> str:
    """As the files have it: whether a process lives is not looked at."""
    if (folder / FINISHED_FILE).exists():
        return "finished"
    standing = Standing.read(folder / SUPERVISOR_FILE)
    if standing is None:
        return "not finished"
    return f"{standing.state}: {standing.sentence}" if standing.sentence else f"{standing.state}"


def incidents(folder: Path, problems: Problems) -> list[IncidentSummary]:
    """Return the stored incident reports, oldest first; reports that cannot be read are listed in `problems`."""
    paths = sorted(folder.glob(f"*/{INCIDENT_FILE}"))[-MOST_INCIDENTS:]
    reports = [problems.attempt(path, read_incident) for path in paths]
    return [IncidentSummary(**asdict(report)) for report in reports if report is not None]


def starts(folder: Path) -> tuple[float, ...]:
    """When training was started, from the names of TensorBoard's files."""
    names = (EVENT_FILE.match(path.name) for path in folder.glob("events.out.tfevents.*"))
    return tuple(sorted({float(match[1]) for match in names if match}))
