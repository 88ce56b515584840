"""The report of what went wrong, for a person and for the decision."""

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.heartbeat import Phase, Progress


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall, or an end that was none.

    Attributes:
        folder: Where its files lie.
        phase: Last phase seen.
        progress: Last record, or None.
        diagnosis: What it was.
        waited_s: Seconds without progress; 0 where the trainer ended by itself.
        blames_samples: Whether the samples at hand may have caused it.
    """

    folder: Path
    phase: Phase
    progress: Progress | None
    diagnosis: Diagnosis
    waited_s: float = 0.0
    blames_samples: bool = True

    def sentence(self) -> str:
        """One line: what, where, why."""
        place = f"in phase {phase_name(self.phase)}"
        if self.progress is not None:
            place += f", epoch {self.progress.epoch}, batch {self.progress.batch}, step {self.progress.step}"
        waited = f"no progress for {self.waited_s:.1f} s " if self.waited_s else ""
        return f"{self.diagnosis.kind}: {waited}{place}: {self.diagnosis.sentence}"

    @property
    def epoch(self) -> int:
        """Of training."""
        return self.progress.epoch if self.progress else 0

    def suspects(self) -> tuple[str, ...]:
        """What names the samples that were being worked on: the worker's, or the batch of a training step.

        A loader stall in which no worker says where it stands names none, as the batch before it is innocent.
        """
        if self.diagnosis.suspect:
            return (self.diagnosis.suspect,)
        innocent = self.diagnosis.kind is StallClass.LOADER_CRASH or not self.blames_samples
        if innocent or self.phase is not Phase.STEP or self.progress is None:
            return ()
        return tuple(f"id={sample}" for sample in self.progress.samples)

    def report(self, outcome: str) -> str:
        """Return the report as JSON; `outcome` says what was done about the incident."""
        progress = self.progress
        report = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "class": self.diagnosis.kind,
            "sentence": self.sentence(),
            "outcome": outcome,
            "phase": phase_name(self.phase),
            "epoch": progress.epoch if progress else None,
            "batch": progress.batch if progress else None,
            "step": progress.step if progress else None,
            "process": progress.process if progress else None,
            "samples": list(progress.samples) if progress else [],
            "suspects": list(self.suspects()),
            "waited_s": round(self.waited_s, 1),
        }
        return json.dumps(report, indent=2) + "\n"


def phase_name(phase: Phase) -> str:
    """For people."""
    return phase.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """Content of an incident report."""

    time_s: float  # seconds since 1970
    kind: str  # class of the stall or of the unexpected exit
    sentence: str  # what was found
    outcome: str  # what was done; empty if the report does not say
    step: float | None  # steps trained by then; None if the report does not say
    folder: str  # name of the folder that contains the report, stacks and logs


def read_incident(path: Path) -> IncidentReport:
    """Return the content of an incident report of the supervisor, or of `StallMonitor`, which writes a `reason`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file contains no JSON object.
    """
    report = json.loads(path.read_text())
    if not isinstance(report, dict):
        raise ValueError(f"holds a {type(report).__name__}, not an object")
    try:
        time_s = datetime.fromisoformat(report["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        time_s = path.stat().st_mtime
    step = report.get("step")
    return IncidentReport(
        time_s=time_s,
        kind=str(report.get("class", "stall")),
        sentence=str(report.get("sentence", report.get("reason", ""))),
        outcome=str(report.get("outcome", "the process was ended" if "reason" in report else "")),
        step=float(step) if isinstance(step, int | float) and not isinstance(step, bool) else None,
        folder=path.parent.name,
    )
