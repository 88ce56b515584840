"""The report of what went wrong, for a person and for the decision."""

import json
import time
from dataclasses import dataclass
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
