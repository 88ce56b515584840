"""What to try next after a trainer has ended badly: rungs as data, the decision as a pure function."""

import json
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from yolo_lightning.supervision.classify import Diagnosis, StallClass
from yolo_lightning.supervision.incident import loader_stalls
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import STATE_FILE

QUARANTINE_AFTER = 2
"""A sample at which training has ended this often within an epoch is set aside. Between two epochs it was trained."""

NAMES_OF_SAMPLES = ("id=", "index=")


@dataclass(frozen=True, slots=True)
class Rung:
    """Loader settings, from fast to safe.

    Attributes:
        name: For the log.
        workers: Processes that it uses; None as configured.
        settings: Of `data.loader`, in the place of those configured. The trainer's own threads stay what they are:
            their number decides the order of sums, and so the last bits of every weight.
    """

    name: str
    workers: int | None = None
    settings: dict[str, int | bool] = field(default_factory=dict)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as options for the trainer's command line."""
        return tuple(f"--data.loader.{name}={json.dumps(value)}" for name, value in self.settings.items())


def loader_settings(workers: int, threads: int) -> dict[str, int | bool]:
    """Settings of a rung with workers that end with every epoch, or without any."""
    return {"num_workers": workers, "persistent_workers": False, "prefetch_factor": 2, "worker_threads": threads}


RUNGS = (
    Rung("as configured"),
    Rung("2 workers, not persistent", 2, loader_settings(2, 2)),
    Rung("no workers", 0, loader_settings(0, 1)),
)


def rungs_from(workers: int) -> tuple[Rung, ...]:
    """The ladder below a configuration with `workers`: no rung has as many or more."""
    return tuple(rung for rung in RUNGS if rung.workers is None or rung.workers < workers)


def rung_of_launch(run: Path, launch: str, workers: int) -> Rung:
    """Where the processes that torchrun starts stand on the ladder: each loader stall of the launch is a rung down.

    Nobody watches them from outside, so what their stall monitors report decides; all read the same.

    Args:
        run: Run folder.
        launch: Name of torchrun's launch; another one begins at the top.
        workers: Loader workers as configured.
    """
    rungs = rungs_from(workers)
    return rungs[min(loader_stalls(run, launch), len(rungs) - 1)]


class EndKind(StrEnum):
    """How an attempt ended, other than by finishing."""

    STALL = "stall"
    CRASH = "crash"
    EXIT_WITHOUT_MARKER = "exit without the finished marker"


@dataclass(frozen=True, slots=True)
class Ending:
    """One attempt that did not finish.

    Attributes:
        kind: How it ended.
        diagnosis: Why, as far as known.
        saved: Whether it wrote a checkpoint that trained further than the one before.
        suspects: Samples that were at hand.
        epoch: Of training.
    """

    kind: EndKind
    diagnosis: Diagnosis
    saved: bool
    suspects: tuple[str, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LadderState:
    """What is remembered between attempts, in the run folder.

    Attributes:
        rung: Number of the rung; never grows smaller within a run.
        attempts: Failed attempts in a row without a further checkpoint.
        restarts: Restarts since the run began.
        loader_crashes: Loader crashes, and loader stalls before the first batch, in a row.
        suspicions: How often training ended at each sample in `suspicious_epoch`.
        suspicious_epoch: The epoch of the last ending with suspects.
        quarantined: Samples that are to be left out.
    """

    rung: int = 0
    attempts: int = 0
    restarts: int = 0
    loader_crashes: int = 0
    suspicions: dict[str, int] = field(default_factory=dict)
    suspicious_epoch: int = 0
    quarantined: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> "LadderState":
        """From a file; the beginning if there is none, or none that can be understood."""
        try:
            content = json.loads(path.read_text())
            return LadderState(**(content | {"quarantined": tuple(content["quarantined"])}))
        except (OSError, ValueError, TypeError, KeyError):
            return LadderState()

    def begun_anew(self, rungs: int) -> "LadderState":
        """For a supervisor that a person has started: the rung stays, the count of attempts does not."""
        return replace(self, rung=min(self.rung, rungs - 1), attempts=0, loader_crashes=0)

    def write(self, path: Path) -> None:
        """To a file, whole or not at all.

        Raises:
            OSError: If it cannot be written.
        """
        write_json(path, asdict(self))


def quarantined(run: Path) -> tuple[str, ...]:
    """Samples that a run is to leave out, as far as they are named by id or place."""
    return tuple(name for name in LadderState.read(run / STATE_FILE).quarantined if name.startswith(NAMES_OF_SAMPLES))


@dataclass(frozen=True, slots=True)
class Decision:
    """What comes next.

    Attributes:
        state: To be remembered.
        restart: Whether to try again.
        pause_s: Seconds to wait before.
        reason: For the log.
    """

    state: LadderState
    restart: bool
    pause_s: float
    reason: str


def decide(
    state: LadderState, ending: Ending, rungs: tuple[Rung, ...], max_attempts: int, pause_s: float, max_pause_s: float
) -> Decision:
    """Down one rung for stalls of the loader and of GPU queues, and for the second loader crash in a row; else again.

    A loader stall before the first batch counts as a crash: a slow start looks the same.

    Args:
        state: Before this ending.
        ending: What happened.
        rungs: The ladder.
        max_attempts: Failed attempts in a row without a further checkpoint after which it gives up.
        pause_s: Pause before the second restart in a row without a further checkpoint, seconds; doubled by each after
            it. The first comes at once: a stall in the night costs no more than it must.
        max_pause_s: At most this.
    """
    attempts = 0 if ending.saved else state.attempts + 1
    loader = ending.diagnosis.kind in (StallClass.LOADER_CRASH, StallClass.LOADER_STALL)
    is_crash = loader and not ending.diagnosis.moves_down
    crashes = state.loader_crashes + 1 if is_crash else 0
    down = ending.diagnosis.moves_down or crashes > 1
    rung = min(state.rung + down, len(rungs) - 1)
    if rung != state.rung:
        crashes = 0
    state, newly = _suspected(state, ending)
    after = replace(
        state,
        rung=rung,
        attempts=attempts,
        loader_crashes=crashes,
    )
    if attempts >= max_attempts:
        return Decision(after, False, 0.0, f"{attempts} attempts in a row without a further checkpoint")
    wait_s = min(pause_s * 2 ** (attempts - 2), max_pause_s) if attempts > 1 else 0.0
    moved = f", on the rung '{rungs[rung].name}'" if rung != state.rung else ""
    left_out = f", leaving out {', '.join(newly)}" if newly else ""
    again = replace(after, restarts=state.restarts + 1)
    return Decision(
        again, True, wait_s, f"attempt {attempts + 1} of {max_attempts} since the last checkpoint{moved}{left_out}"
    )


def _suspected(state: LadderState, ending: Ending) -> tuple[LadderState, tuple[str, ...]]:
    """The state with the samples of an ending counted, and those of them that are to be left out from now on."""
    if not ending.suspects:
        return state, ()
    before = state.suspicions if state.suspicious_epoch == ending.epoch else {}
    suspicions = before | {sample: before.get(sample, 0) + 1 for sample in ending.suspects}
    newly = tuple(
        sample
        for sample in ending.suspects
        if suspicions[sample] >= QUARANTINE_AFTER and sample not in state.quarantined
    )
    quarantined = state.quarantined + newly
    return replace(state, suspicions=suspicions, suspicious_epoch=ending.epoch, quarantined=quarantined), newly
