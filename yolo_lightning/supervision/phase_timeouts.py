"""How long each phase of a training may take without a sign of life."""

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Self

from yolo_lightning.supervision.heartbeat import Phase


@dataclass(frozen=True)
class Floors:
    """Seconds that each phase may take without a sign of life, before anything was learned from the run.

    Attributes:
        import_s: Loading the libraries.
        setup_s: Building network, data and trainer.
        index_s: Packing the annotations.
        sanity_s: One batch of the validation before training.
        first_batch_s: Starting the workers, choosing convolution plans, compiling kernels.
        fetch_s: Waiting for a batch.
        step_s: One training step.
        validate_s: One validation batch.
        metrics_s: Scoring a whole validation.
        save_s: Writing a checkpoint.
        epoch_end_s: What comes between two epochs.
        exit_s: Ending the process.
    """

    import_s: float = 300.0
    setup_s: float = 300.0
    index_s: float = 900.0
    sanity_s: float = 300.0
    first_batch_s: float = 300.0
    fetch_s: float = 60.0
    step_s: float = 60.0
    validate_s: float = 120.0
    metrics_s: float = 900.0
    save_s: float = 180.0
    epoch_end_s: float = 300.0
    exit_s: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, allowed are values above 0")

    def of(self, phase: Phase) -> float:
        """Of one phase, seconds."""
        return float(getattr(self, f"{phase.name.lower()}_s"))


@dataclass(frozen=True, slots=True)
class Allowances:
    """How long each phase may take: its floor, or five times the longest stay seen, whichever is more.

    Five as in nvidia-resiliency-ext's learned timeouts.

    Attributes:
        floors: Seconds, from the configuration.
        longest_s: Longest healthy stay seen in each phase, seconds.
        factor: How many times that.
    """

    floors: Floors
    longest_s: dict[Phase, float]
    factor: float = 5.0

    def seconds(self, phase: Phase) -> float:
        """Of one phase."""
        return max(self.floors.of(phase), self.factor * self.longest_s.get(phase, 0.0))

    def largest_s(self) -> float:
        """Of the phase that may take longest."""
        return max(map(self.seconds, Phase))

    def learn(self, longest_s: dict[Phase, float], grace_s: float) -> Self:
        """Grown by what was seen.

        A stay beyond its allowance and `grace_s` was no healthy one: it was excused, by a suspend or a debugger.
        """
        grown = {
            phase: seconds
            for phase, seconds in longest_s.items()
            if self.longest_s.get(phase, 0.0) < seconds <= self.seconds(phase) + grace_s
        }
        return replace(self, longest_s=self.longest_s | grown) if grown else self

    def to_json(self) -> str:
        """As text."""
        seen = {phase.name.lower(): seconds for phase, seconds in sorted(self.longest_s.items())}
        return json.dumps({"floors": asdict(self.floors), "factor": self.factor, "longest_s": seen}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """From a file; None if there is none, or none that can be understood."""
        try:
            content = json.loads(path.read_text())
            longest = {Phase[name.upper()]: float(seconds) for name, seconds in content["longest_s"].items()}
            return cls(Floors(**content["floors"]), longest, float(content["factor"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
