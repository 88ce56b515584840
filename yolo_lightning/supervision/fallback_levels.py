"""Fallback levels of loader, computation and precision, from fast to safe, and the state of a run between attempts.

The levels are independent of each other. `next_action` decides which of them is lowered or taken back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from yolo_lightning.supervision.incident import loader_stalls
from yolo_lightning.utils.json_record import read_record
from yolo_lightning.utils.run_files import STATE_FILE

AS_CONFIGURED = "as configured"
LOADER = "loader"
COMPUTATION = "computation"
PRECISION = "precision"


@dataclass(frozen=True, slots=True)
class FallbackLevel:
    """Settings of the trainer at one level.

    The threads of the trainer itself are the same at all levels: their number decides the order of sums, and so the
    last bits of every weight.
    """

    name: str
    num_workers: int | None = None  # loader processes; None for the configured number
    settings: dict[str, Any] = field(default_factory=dict)  # options that are replaced, by full key
    saves_memory: bool = False  # whether the level needs less memory of the GPU than the levels above it

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as command-line options of the trainer."""
        return tuple(
            f"--{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in self.settings.items()
        )


def _loader(num_workers: int) -> dict[str, Any]:
    settings = {"num_workers": num_workers, "persistent_workers": False, "prefetch_factor": 2}
    return {f"data.loader.{key}": value for key, value in settings.items()}


LOADER_LEVELS = (
    FallbackLevel(AS_CONFIGURED),
    FallbackLevel("2 workers, not persistent", 2, _loader(2)),
    FallbackLevel("no workers", 0, _loader(0)),
)

PRECISION_OPTION = "trainer.precision"
FLOAT32 = "32-true"
SINGLE_PRECISIONS = frozenset(("None", "32", FLOAT32, "64", "64-true"))
"""Values of `trainer.precision` with which nothing is computed in 16 bits."""

BACKEND = "model.convolution.backend"
ALGORITHM = "model.convolution.algorithm"
_GEMM = {BACKEND: "gemm"}
_PLAIN = {**_GEMM, ALGORITHM: "table"}
COMPUTATION_LEVELS = (
    FallbackLevel(AS_CONFIGURED),
    FallbackLevel("gemm", settings=_GEMM),
    FallbackLevel("gemm without GPU kernels", settings=_PLAIN),
    FallbackLevel("half the images at once", settings={**_PLAIN, "model.guard.oom_splits": 1}, saves_memory=True),
)
CPU_LEVEL = FallbackLevel(
    "CPU",
    settings={"trainer.accelerator": "cpu", "trainer.devices": 1, PRECISION_OPTION: FLOAT32, BACKEND: "auto"},
    saves_memory=True,
)
PRECISION_LEVELS = (FallbackLevel(AS_CONFIGURED), FallbackLevel("float32", settings={PRECISION_OPTION: FLOAT32}))
COMPUTATION_KEYS = frozenset(key for level in (*COMPUTATION_LEVELS, CPU_LEVEL) for key in level.settings)


def levels_below(num_workers: int) -> tuple[FallbackLevel, ...]:
    """Return the configured level of the loader, and the levels with fewer than `num_workers` workers."""
    return tuple(level for level in LOADER_LEVELS if level.num_workers is None or level.num_workers < num_workers)


def computation_levels(options: Mapping[str, Any], *, cpu: bool = False) -> tuple[FallbackLevel, ...]:
    """Return the levels of the computation that differ from one another for the given `options`, by full key.

    With `cpu`, the last level trains on the CPU.
    """
    configured = {key: value for key, value in options.items() if key in COMPUTATION_KEYS}
    levels = [COMPUTATION_LEVELS[0]]
    for level in COMPUTATION_LEVELS[1:]:
        if level.saves_memory and options.get("trainer.sync_batchnorm"):
            continue  # its statistics need all images of a rank at once
        if configured | level.settings != configured | levels[-1].settings:
            levels.append(level)
    if cpu and options.get("trainer.accelerator") != "cpu":
        levels.append(CPU_LEVEL)
    return tuple(levels)


def precision_levels(precision: Any) -> tuple[FallbackLevel, ...]:
    """Return the levels of the precision for a value of `trainer.precision`; one level if it is not mixed precision."""
    return PRECISION_LEVELS[:1] if str(precision) in SINGLE_PRECISIONS else PRECISION_LEVELS


def level_of_launch(run: Path, launch: str, num_workers: int) -> FallbackLevel:
    """Return the loader's fallback level for a torchrun launch. Every loader stall in the launch lowers it by one.

    No supervisor runs under torchrun: all ranks read the incident reports of their stall monitors. Another `launch`
    starts with the configured level, of `num_workers` loader workers.
    """
    levels = levels_below(num_workers)
    return levels[min(loader_stalls(run, launch), len(levels) - 1)]


@dataclass(frozen=True, slots=True)
class LevelState:
    """Level of the loader, the computation or the precision, and its history in the run."""

    name: str = AS_CONFIGURED
    reason: str = ""  # incident that lowered the level, or the time without incidents that raised it
    since: str = ""  # ISO 8601
    failures: dict[str, int] = field(default_factory=dict)  # incidents that lowered the level, by name of the level

    def number(self, levels: Sequence[FallbackLevel]) -> int:
        """Return the position in `levels`; 0 for a name that is not one of them."""
        names = [level.name for level in levels]
        return names.index(self.name) if self.name in names else 0


@dataclass(frozen=True, slots=True)
class FallbackState:
    """State between attempts, stored in the run folder."""

    loader: LevelState = field(default_factory=LevelState)
    computation: LevelState = field(default_factory=LevelState)
    precision: LevelState = field(default_factory=LevelState)
    on_trial: str = ""  # name of the part whose level was taken back, if no checkpoint followed yet
    failed_climbs: int = 0  # levels that were taken back and failed again
    trained: bool = False  # whether the run has trained a step
    attempts: int = 0  # consecutive failed attempts without a new checkpoint
    restarts: int = 0  # since the run began
    waits: int = 0  # consecutive pauses for something outside of the run
    failures: dict[str, int] = field(default_factory=dict)  # at these levels, by what can be changed after them
    fingerprint: str = ""  # traceback and step of the last failure
    equal_failures: int = 0  # consecutive failures with this fingerprint, without the first one
    suspicions: dict[str, int] = field(default_factory=dict)  # ends of training per sample in `suspicious_epoch`
    suspicious_epoch: int = 0  # epoch of the last end with suspects
    quarantined: tuple[str, ...] = ()  # samples to leave out

    @staticmethod
    def read(path: Path) -> "FallbackState":
        """Return the content of a file, or the initial state if the file is missing or damaged."""
        return read_record(path, FallbackState) or FallbackState()

    def for_new_supervisor(self) -> "FallbackState":
        """Return the state for a new supervisor: the levels are kept, attempts and failures are reset."""
        return replace(self.after_progress(), failures={})

    def after_progress(self) -> "FallbackState":
        """Return the state after a new checkpoint. Failures of the computation still count: they can be rare."""
        failures = {remedy: count for remedy, count in self.failures.items() if remedy == COMPUTATION}
        return replace(self, attempts=0, waits=0, failures=failures, fingerprint="", equal_failures=0, on_trial="")

    @property
    def parts(self) -> dict[str, LevelState]:
        """Levels by name of the part of the training, in the order in which they are taken back."""
        return {LOADER: self.loader, COMPUTATION: self.computation, PRECISION: self.precision}

    @property
    def was_lowered(self) -> bool:
        """Whether the run has computed at a lower level, so that the precision of its checkpoints can be another."""
        return bool(self.computation.failures or self.precision.failures)

    @property
    def line(self) -> str:
        """Lowered levels with time and reason, for the log, `monitor`, report and notifications."""
        lowered = [
            f"{part}: {level.name} since {level.since} ({level.reason})"
            for part, level in self.parts.items()
            if level.name != AS_CONFIGURED
        ]
        return "; ".join(lowered) or AS_CONFIGURED


@dataclass(frozen=True, slots=True)
class Levels:
    """Fallback levels of a run, from fast to safe; the first one is that of the configuration."""

    loader: Sequence[FallbackLevel]
    computation: Sequence[FallbackLevel]
    precision: Sequence[FallbackLevel] = PRECISION_LEVELS[:1]

    def overrides(self, state: FallbackState) -> tuple[str, ...]:
        """Return the options of the trainer at these levels."""
        overrides: list[str] = []
        for part, level in state.parts.items():
            levels = getattr(self, part)
            overrides += levels[level.number(levels)].overrides
        return tuple(overrides)


def levels_of(options: Mapping[str, Any], num_workers: int, *, cpu: bool) -> Levels:
    """Return the levels of a fit with these options, by full key, and with `num_workers` loader processes."""
    precision = precision_levels(options.get(PRECISION_OPTION))
    return Levels(levels_below(num_workers), computation_levels(options, cpu=cpu), precision)


ONE_LEVEL = Levels(LOADER_LEVELS[:1], COMPUTATION_LEVELS[:1])
"""Levels of a run whose settings cannot be changed."""


def quarantined(run: Path) -> tuple[str, ...]:
    """Return the samples that a run must leave out, as `id=...` or `index=...`."""
    return tuple(filter(can_leave_out, FallbackState.read(run / STATE_FILE).quarantined))


def can_leave_out(sample: str) -> bool:
    """Return whether the data module can leave out a sample with this name."""
    return sample.startswith(("id=", "index="))
