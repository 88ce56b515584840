"""Time limits of the phases of a training process: configured minimum values, extended by measured durations."""

from dataclasses import dataclass, replace
from typing import Self

from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.utils.choices import check_range, settings_group

LONGEST_S = 4 * 3600.0
"""Longest duration that extends a timeout: a damaged file could otherwise disable the detection of stalls."""


@settings_group("supervision.phase_timeouts")
class PhaseTimeouts:
    """Seconds that each phase may take without a heartbeat.

    Attributes:
        import_s: Import of the libraries.
        setup_s: Construction of network, data and trainer.
        index_s: Packing of the annotations.
        first_batch_s: Start of the workers, choice of convolution algorithms, compilation of kernels, validation before
            training, first step.
        fetch_s: Wait for a batch.
        step_s: One training step.
        validate_s: One validation batch.
        metrics_s: Scores of a whole validation.
        save_s: Write of a checkpoint.
        epoch_end_s: Callbacks between two epochs.
        exit_s: End of the process.
    """

    import_s: float = 300.0
    setup_s: float = 300.0
    index_s: float = 900.0
    first_batch_s: float = 300.0
    fetch_s: float = 60.0
    step_s: float = 60.0
    validate_s: float = 120.0
    metrics_s: float = 900.0
    save_s: float = 180.0
    epoch_end_s: float = 300.0
    exit_s: float = 60.0

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            check_range(f"supervision.phase_timeouts.{name}", seconds, "> 0")

    def of(self, phase: Phase) -> float:
        """Return the timeout of a phase in seconds."""
        return float(getattr(self, f"{phase.key}_s"))


@dataclass(frozen=True, slots=True)
class AdaptiveTimeouts:
    """Timeout of each phase: the configured minimum, or a multiple of the longest duration if that is longer.

    The fields are the content of `phase_timeouts.json` in the run folder.
    """

    minimum: PhaseTimeouts  # configured timeouts
    longest_s: dict[str, float]  # longest completed duration of each phase without a stall, seconds, by `Phase.key`
    factor: float = 5.0  # multiple of the longest duration, as in the learned timeouts of nvidia-resiliency-ext

    def seconds(self, phase: Phase) -> float:
        """Return the timeout of a phase."""
        longest_s = min(self.longest_s.get(phase.key, 0.0), LONGEST_S)
        return max(self.minimum.of(phase), self.factor * longest_s)

    def largest_s(self) -> float:
        """Return the largest timeout of all phases."""
        return max(map(self.seconds, Phase))

    def learn(self, longest_s: dict[Phase, float], grace_s: float) -> Self:
        """Return the timeouts after new durations were measured.

        A duration longer than the timeout plus `grace_s` is ignored: a suspend or a debugger has extended it.
        """
        grown = {
            phase.key: max(seconds, self.longest_s.get(phase.key, 0.0))
            for phase, seconds in longest_s.items()
            if seconds <= min(self.seconds(phase) + grace_s, LONGEST_S)
        }
        return replace(self, longest_s=self.longest_s | grown)

    def doubled(self, phase: Phase) -> Self:
        """Return the timeouts with twice the time for a phase, up to a limit."""
        longer_s = min(2 * self.seconds(phase), max(LONGEST_S, self.minimum.of(phase)))
        return replace(self, minimum=replace(self.minimum, **{f"{phase.key}_s": longer_s}))
