"""`soak`: train with the user's own options for hours in a temporary folder, and report what happened."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import checksum_path, newest_checkpoint
from yolo_lightning.commands.console import duration, share
from yolo_lightning.commands.option_layers import given_options
from yolo_lightning.supervision.incident import read_report
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.run_status import Status, SupervisorStatus, read_status
from yolo_lightning.supervision.trainer import end_with_parent
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.machine_reader import MachineReader, SensorReadings
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    INCIDENT_FILE,
    INCIDENTS,
    PHASE_TIMEOUTS_FILE,
    STATUS_FILE,
    SUPERVISOR_FILE,
)

READING_S = 10.0
SAVE_S = 600.0
"""Seconds for the last checkpoint after the end of the time."""

PARTS, LINES_SHOWN, WIDTH = 8, 10, 12
COLUMNS = {
    "steps_per_s": ("steps/s", 1.0, ".3g"),
    "fetch_share": ("data wait %", 100.0, ".0f"),
    "temperature_c": ("°C", 1.0, ".0f"),
    "gpu_bytes": ("GPU GB", 1e-9, ".2f"),
    "memory_bytes": ("memory GB", 1e-9, ".2f"),
}
"""Heading, factor and format of each column of the report."""
LARGEST_WAIT, LARGEST_GPU_MEMORY = 0.1, 0.92
"""Share of waiting for data, and used share of the GPU's memory, above which other settings are recommended."""

OVERRIDES = (
    "--supervision.enabled=true",
    "--trainer.max_epochs=1000000",  # the time ends the training
    "--model.guard.self_check_share=1.0",  # every step
    "--mirror=null",  # a mirror belongs to the run of the user
)


@dataclass(frozen=True, slots=True)
class SoakReading:
    """Readings at one moment; None if unknown."""

    at_s: float  # seconds since the start
    steps_per_s: float | None = None  # with the wait for the batch
    fetch_share: float | None = None  # share of the time spent waiting for the batch
    temperature_c: float | None = None  # of the hottest GPU
    gpu_bytes: float | None = None  # used memory of all GPUs
    gpu_share: float | None = None  # used share of the memory of the fullest GPU
    memory_bytes: float | None = None  # used main memory


def soak(*, command: list[str], hours: float = 2.0) -> None:
    """Train with the options of a fit for some hours in a temporary folder, and report what happened.

    All other options are those of `fit`. A run of these options is not changed: the training starts from a copy of its
    newest checkpoint. Exit code 0 if nothing happened, else 1; then the temporary folder is kept.

    Args:
        command: Options of `fit`.
        hours: Duration.
    """
    if not hours > 0:
        raise ValueError(f"--hours must be > 0, got {hours}.")
    run = Path(tempfile.mkdtemp(prefix="yolo_lightning_soak_")) / "run"
    words = [*command, *OVERRIDES, f"--trainer.default_root_dir={run}", *copied_state(command, run)]
    print(f"soak: fit for {duration(hours * 3600)} in {run}", flush=True)
    code, samples = train(words, run, hours * 3600)
    problems = [*end_of_fit(code, run), *(f"incident: {one['sentence']}" for one in incidents(run))]
    status = read_status(run / STATUS_FILE)
    watched = status.findings if status is not None else ()
    problems += [f"{one.watch}: {one.sentence}" for one in watched]
    print("\n".join([*trends(samples), *phases(run), *recommended(samples, run)]))
    if problems:
        print("\n".join([*problems, f"soak: something happened; see {run}"]))
        raise SystemExit(ExitCode.FAILED)
    shutil.rmtree(run.parent, ignore_errors=True)
    print(f"soak: nothing happened in {duration(samples[-1].at_s)}")


def copied_state(command: Sequence[str], run: Path) -> list[str]:
    """Copy the newest checkpoint of the run that the options name to `run`; return the option that resumes it."""
    try:
        options = given_options(["fit", *command], os.environ).all
    except OSError as error:
        raise ValueError(f"a configuration file cannot be read: {error}") from error
    base = run_folder.configured_folder(str(options.get("trainer.default_root_dir", run_folder.DEFAULT_RUN)))
    found = run_folder.runs(base)
    checkpoint = newest_checkpoint(found[0] / CHECKPOINTS)[0] if found and not options.get("ckpt_path") else None
    if checkpoint is None:
        return []
    (run / CHECKPOINTS).mkdir(parents=True)
    for path in (checkpoint, checksum_path(checkpoint)):
        with suppress(FileNotFoundError):
            shutil.copyfile(path, run / CHECKPOINTS / path.name)
    print(f"soak: starts from a copy of {checkpoint}")
    return [] if options.get("resume") else ["--resume"]


def train(words: Sequence[str], run: Path, seconds: float) -> tuple[int, list[SoakReading]]:
    """Run a supervised fit for a time; return its exit code and readings. SIGTERM ends the fit with a checkpoint."""
    began_s, samples = time.monotonic(), []
    with (run.parent / "output.log").open("wb") as output:
        fit = subprocess.Popen(
            [sys.executable, "-m", "yolo_lightning", "fit", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent(os.getpid()),
        )
    machine = MachineReader(run.parent, READING_S)
    try:
        while fit.poll() is None and (left_s := began_s + seconds - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                fit.wait(min(READING_S, left_s))
            samples.append(sample(time.monotonic() - began_s, read_status(run / STATUS_FILE), machine.latest()))
    finally:
        fit.send_signal(signal.SIGTERM)
        try:
            fit.wait(SAVE_S)
        except subprocess.TimeoutExpired:
            fit.kill()
            fit.wait()
    return fit.returncode, samples


def sample(at_s: float, status: Status | None, machine: SensorReadings) -> SoakReading:
    gpus = [gpu for gpu in machine.gpus if gpu.memory_used_bytes is not None]
    return SoakReading(
        at_s,
        steps_per_s=1 / status.step_s if status and status.step_s else None,
        fetch_share=status.fetch_share if status else None,
        temperature_c=max((gpu.temperature_c for gpu in machine.gpus if gpu.temperature_c is not None), default=None),
        gpu_bytes=sum(gpu.memory_used_bytes or 0 for gpu in gpus) if gpus else None,
        gpu_share=max(((gpu.memory_used_bytes or 0) / (gpu.memory_bytes or 1) for gpu in gpus), default=None),
        memory_bytes=machine.memory.used_bytes if machine.memory else None,
    )


def end_of_fit(code: int, run: Path) -> Iterator[str]:
    """Yield lines about an end of the fit that is no end by the time."""
    if code == of_signal(signal.SIGTERM):
        return
    yield f"the fit ended before its time, with exit code {code}"
    output = run.parent / "output.log"
    yield from (f"  {line}" for line in output.read_text(errors="replace").splitlines()[-LINES_SHOWN:])


def incidents(run: Path) -> list[dict[str, object]]:
    """Return the incident reports of a run, oldest first; a damaged report counts, too."""
    found = []
    for path in sorted(run.glob(f"{INCIDENTS}/*/{INCIDENT_FILE}")):
        try:
            found.append({"sentence": f"see {path}", "phase": "unknown phase"} | read_report(path))
        except (OSError, ValueError) as error:
            found.append({"sentence": f"{path}: {error}", "phase": "unknown phase"})
    return found


def trends(samples: Sequence[SoakReading]) -> list[str]:
    """Return a table over time, and one line per quantity that was read, with its slope."""
    lines = [" ".join(["until".rjust(WIDTH), *(heading.rjust(WIDTH) for heading, _, _ in COLUMNS.values())])]
    size = -(-len(samples) // PARTS)
    for part in (samples[at : at + size] for at in range(0, len(samples), size or 1)):
        cells = [duration(part[-1].at_s)]
        for name, (_, factor, form) in COLUMNS.items():
            value = median_of(part, name)
            cells.append("-" if value is None else format(value * factor, form))
        lines.append(" ".join(cell.rjust(WIDTH) for cell in cells))
    for name, (heading, factor, _) in COLUMNS.items():
        # The first quarter contains the start of workers and the compilation of kernels.
        points = [(one.at_s / 3600, getattr(one, name)) for one in samples[len(samples) // 4 :]]
        known = [(hour, value * factor) for hour, value in points if value is not None]
        if len({hour for hour, _ in known}) > 1:
            slope = statistics.linear_regression(*zip(*known, strict=True)).slope
            lines.append(f"trend: {slope:+.3g} {heading} per hour")
    return lines


def median_of(samples: Sequence[SoakReading], name: str) -> float | None:
    values = [value for one in samples if (value := getattr(one, name)) is not None]
    return statistics.median(values) if values else None


def phases(run: Path) -> list[str]:
    """Return one line per phase that was timed or has a stall: longest duration, timeout and number of incidents."""
    timeouts = AdaptiveTimeouts.read(run / PHASE_TIMEOUTS_FILE)
    stalls = Counter(str(one["phase"]) for one in incidents(run))
    lines = [f"phase {name}: {count} incidents" for name, count in stalls.items()]
    if timeouts is not None:
        lines += [
            f"phase {phase.label}: at most {seconds:.1f} s, timeout {timeouts.seconds(phase):.0f} s"
            for phase, seconds in timeouts.longest_s.items()
        ]
    return lines


def recommended(samples: Sequence[SoakReading], run: Path) -> list[str]:
    """Return the settings that the readings suggest, one per line."""
    later, lines = samples[len(samples) // 4 :], []
    standing = SupervisorStatus.read(run / SUPERVISOR_FILE)
    if standing is not None and standing.restarts and standing.fallback_level:
        lines.append(f"start at the fallback level of the last restart: {standing.fallback_level}")
    if (wait := median_of(later, "fetch_share")) is not None and wait > LARGEST_WAIT:
        lines.append(
            f"training waits for data {share(wait)} of the time: more data.loader.num_workers, or a packed store "
            "(`prepare`)"
        )
    full = max((one.gpu_share for one in samples if one.gpu_share is not None), default=0.0)
    if full > LARGEST_GPU_MEMORY:
        lines.append(
            f"the GPU's memory is {share(full)} full: a smaller data.batch_size, or "
            "model.convolution.activation_checkpointing: true"
        )
    return [f"recommended: {line}" for line in lines or ["the settings as they are"]]
