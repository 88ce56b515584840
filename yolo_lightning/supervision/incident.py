"""Incident reports: stalls and unexpected exits of a training process, written and read."""

import json
import math
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from yolo_lightning.errors import UserError
from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.heartbeat import Heartbeat
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.json_record import converted, read_json
from yolo_lightning.utils.moment import is_moment
from yolo_lightning.utils.plain_text import one_line
from yolo_lightning.utils.run_files import INCIDENT_FILE, INCIDENTS


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall or an unexpected exit of the training process."""

    folder: Path  # of the report, the stacks and the logs
    heartbeat: Heartbeat  # the last one; `NOT_STARTED` before the first one
    diagnosis: Diagnosis
    waited_s: float = 0.0  # seconds without a heartbeat; 0 after an exit
    rank: int = 0  # on this host

    def sentence(self) -> str:
        """Return class, place and description in one line."""
        heartbeat = self.heartbeat
        place = f"in phase {heartbeat.phase.label}"
        if self.rank:
            place = f"of rank {self.rank} on {socket.gethostname()} {place}"
        if heartbeat.activity:
            place += f" ({heartbeat.activity.label})"
        if heartbeat.process:
            place += f", epoch {heartbeat.epoch + 1}, batch {heartbeat.batch}, step {heartbeat.step}"
        if self.waited_s:
            place = f"no progress for {self.waited_s:.1f} s {place}"
        return f"{self.diagnosis.kind}: {place}: {self.diagnosis.sentence}"

    def report(self, outcome: str, **further: Any) -> str:
        """Return the report as JSON; `outcome` describes the reaction to the incident, `further` adds entries."""
        report = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "class": self.diagnosis.kind,
            "sentence": self.sentence(),
            "outcome": outcome,
            "host": socket.gethostname(),
            "rank": self.rank,
            "phase": self.heartbeat.phase.label,
            "activity": self.heartbeat.activity.label,
            **{name: getattr(self.heartbeat, name) for name in ("epoch", "batch", "step", "process", "samples")},
            "waited_s": round(self.waited_s, 1),
        }
        return json.dumps(report | further, indent=2) + "\n"


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """Content of an incident report."""

    time_s: float  # seconds since 1970
    kind: str  # class of the stall or of the unexpected exit
    sentence: str  # description
    outcome: str  # reaction to the incident; empty if missing
    step: float | None  # steps trained so far; None if missing
    folder: str  # name of the folder that contains the report, stacks and logs


def read_incident(path: Path) -> IncidentReport:
    """Return the content of an incident report; raise an OSError or a ValueError if `read_report` does."""
    report = read_report(path)
    try:
        time_s = datetime.fromisoformat(report["time"]).timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        time_s = math.nan
    if not is_moment(time_s):
        time_s = path.stat().st_mtime
    try:
        step: float | None = converted(report.get("step"), float)
    except ValueError:
        step = None
    stall_class, sentence, outcome = (one_line(str(report.get(name, ""))) for name in ("class", "sentence", "outcome"))
    folder = one_line(path.parent.name)
    return IncidentReport(time_s, stall_class or StallClass.UNKNOWN, sentence, outcome, step, folder)


def loader_stalls(run: Path, launch: str) -> int:
    """Return the number of attempts of a torchrun launch that ended by a stall in the wait for a batch.

    Only the rank with the loader stall waits for a batch; the other ranks wait for this rank.
    """
    attempts = set()
    for path in (run / INCIDENTS).glob(f"*/{INCIDENT_FILE}"):
        try:
            report = read_report(path)
        except (OSError, ValueError):
            continue
        if report.get("launch") == launch and report.get("activity") == Activity.LOAD.label:
            attempts.add(str(report.get("attempt")))
    return len(attempts)


def read_report(path: Path) -> dict[str, Any]:
    """Return the entries of an incident report; raise an OSError or a ValueError if they cannot be read."""
    report = read_json(path)
    if not isinstance(report, dict):
        raise UserError(f"must contain a JSON object, got {type(report).__name__}")
    return report
