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
from pathlib import Path

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.checkpoint_file import checksum_path, newest_checkpoint
from yolo_lightning.commands.option_errors import fail
from yolo_lightning.commands.option_layers import given_options
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.incident import read_report
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts
from yolo_lightning.supervision.run_status import Status, SupervisorStatus, read_status
from yolo_lightning.supervision.trainer import end_with_parent
from yolo_lightning.utils.exit_codes import ExitCode, of_signal
from yolo_lightning.utils.moment import duration
from yolo_lightning.utils.run_files import (
    CHECKPOINTS,
    INCIDENT_FILE,
    INCIDENTS,
    PHASE_TIMEOUTS_FILE,
    STATUS_FILE,
    SUPERVISOR_FILE,
)
from yolo_lightning.utils.sensors import MachineReader, SensorReadings

READING_S = 10.0
SAVE_S = 600.0
"""Seconds for the last checkpoint after the end of the time."""

PARTS = 8
LINES_SHOWN = 10
WIDTH = 12
COLUMNS = {"steps/s": ".3g", "data wait %": ".0f", "°C": ".0f", "GPU memory %": ".0f", "memory GB": ".2f"}
"""Quantities of a reading, with the format of the column of the report."""
LARGEST_WAIT = 10.0
LARGEST_GPU_MEMORY = 92.0
"""Percent of waiting for data, and of used GPU memory, above which other settings are recommended."""

OVERRIDES = (
    "--supervision.enabled=true",
    "--trainer.max_epochs=1000000",  # the time ends the training
    "--model.guard.self_check_share=1.0",  # every step
    "--mirror=null",  # a mirror belongs to the run of the user
)


Reading = dict[str, float]
"""Hours since the start, and the quantities of `COLUMNS` that are known."""


def soak(*, command: list[str], hours: float = 2.0) -> None:
    """Train with the options of a fit for some hours in a temporary folder, and report what happened.

    All other options are those of `fit`. A run of these options is not changed: the training starts from a copy of its
    newest checkpoint. Exit code 0 if nothing happened, else 1; then the temporary folder is kept.

    Args:
        command: Options of `fit`.
        hours: Duration.
    """
    if not hours > 0:
        raise UserError(f"--hours must be > 0, got {hours}.")
    run = Path(tempfile.mkdtemp(prefix="yolo_lightning_soak_")) / "run"
    words = [*command, *OVERRIDES, f"--trainer.default_root_dir={run}", *copied_state(command, run)]
    print(f"soak: fit for {duration(hours * 3600)} in {run}", flush=True)
    code, samples = train(words, run, hours * 3600)
    ends = [*end_of_fit(code, run)]
    if code == ExitCode.USAGE and not (run / STATUS_FILE).exists():  # no training began
        shutil.rmtree(run.parent, ignore_errors=True)
        fail(ends[-1].strip().removeprefix("error: "))
    problems = [*ends, *(f"incident: {incident['sentence']}" for incident in incidents(run))]
    status = read_status(run / STATUS_FILE)
    if status is not None:
        problems += [f"{finding.watch}: {finding.sentence}" for finding in status.findings]
    print("\n".join([*trends(samples), *phases(run), *recommended(samples, run)]))
    if problems:
        print("\n".join([*problems, f"soak: something happened; see {run}"]))
        raise SystemExit(ExitCode.FAILED)
    shutil.rmtree(run.parent, ignore_errors=True)
    print(f"soak: nothing happened in {duration(3600 * samples[-1]['hours'])}")


def copied_state(command: Sequence[str], run: Path) -> list[str]:
    """Copy the newest checkpoint of the run that the options name to `run`; return the option that resumes it."""
    try:
        options = given_options(["fit", *command], os.environ).all
    except OSError as error:
        raise UserError(f"a configuration file cannot be read: {error}") from error
    base = run_folder.configured_folder(str(options.get("trainer.default_root_dir", run_folder.DEFAULT_RUN)))
    runs = run_folder.runs(base)
    checkpoint: Path | None = None
    if runs and not options.get("ckpt_path"):
        checkpoint, _ = newest_checkpoint(runs[0] / CHECKPOINTS)
    if checkpoint is None:
        return []
    (run / CHECKPOINTS).mkdir(parents=True)
    for path in (checkpoint, checksum_path(checkpoint)):
        with suppress(FileNotFoundError):
            shutil.copyfile(path, run / CHECKPOINTS / path.name)
    print(f"soak: starts from a copy of {checkpoint}")
    if options.get("resume"):
        return []
    return ["--resume"]


def train(words: Sequence[str], run: Path, seconds: float) -> tuple[int, list[Reading]]:
    """Run a supervised fit for a time; return its exit code and readings. SIGTERM ends the fit with a checkpoint."""
    began_s = time.monotonic()
    end_s = began_s + seconds
    samples: list[Reading] = []
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
        while fit.poll() is None and time.monotonic() < end_s:
            with suppress(subprocess.TimeoutExpired):
                fit.wait(max(0.0, min(READING_S, end_s - time.monotonic())))
            samples.append(reading(time.monotonic() - began_s, read_status(run / STATUS_FILE), machine.latest()))
    finally:
        fit.send_signal(signal.SIGTERM)
        try:
            fit.wait(SAVE_S)
        except subprocess.TimeoutExpired:
            fit.kill()
            fit.wait()
    return fit.returncode, samples


def reading(at_s: float, status: Status | None, machine: SensorReadings) -> Reading:
    """Return the readings at one moment: the hottest GPU, the GPU with the fullest memory, the main memory."""
    temperatures = [gpu.temperature_c for gpu in machine.gpus if gpu.temperature_c is not None]
    full = [
        gpu.memory_used_bytes / gpu.memory_bytes for gpu in machine.gpus if gpu.memory_used_bytes and gpu.memory_bytes
    ]
    quantities = {"hours": at_s / 3600}
    if status and status.step_s:
        quantities["steps/s"] = 1 / status.step_s
    if status and status.fetch_share is not None:
        quantities["data wait %"] = 100 * status.fetch_share
    if temperatures:
        quantities["°C"] = max(temperatures)
    if full:
        quantities["GPU memory %"] = 100 * max(full)
    if machine.memory:
        quantities["memory GB"] = machine.memory.used_bytes / 1e9
    return quantities


def end_of_fit(code: int, run: Path) -> Iterator[str]:
    """Yield lines about an end of the fit that is no end by the time."""
    if code == of_signal(signal.SIGTERM):
        return
    yield f"the fit ended before its time, with exit code {code}"
    output = run.parent / "output.log"
    yield from (f"  {line}" for line in output.read_text(errors="replace").splitlines()[-LINES_SHOWN:])


def incidents(run: Path) -> list[dict[str, object]]:
    """Return the incident reports of a run, oldest first; a damaged report counts, too."""
    reports = []
    for path in sorted(run.glob(f"{INCIDENTS}/*/{INCIDENT_FILE}")):
        report: dict[str, object] = {"sentence": f"see {path}", "phase": "unknown phase"}
        with suppress(OSError, ValueError):
            report |= read_report(path)
        reports.append(report)
    return reports


def trends(samples: Sequence[Reading]) -> list[str]:
    """Return a table over time, and one line per quantity that was read, with its slope."""
    lines = [" ".join(name.rjust(WIDTH) for name in ("until", *COLUMNS))]
    size = -(-len(samples) // PARTS)
    for part in (samples[at : at + size] for at in range(0, len(samples), size or 1)):
        values = {name: median_of(part, name) for name in COLUMNS}
        cells = [duration(3600 * part[-1]["hours"])]
        cells += ["-" if value is None else format(value, COLUMNS[name]) for name, value in values.items()]
        lines.append(" ".join(cell.rjust(WIDTH) for cell in cells))
    for name in COLUMNS:
        # The first quarter contains the start of workers and the compilation of kernels.
        points = [(sample["hours"], sample[name]) for sample in samples[len(samples) // 4 :] if name in sample]
        if len({hours for hours, _ in points}) > 1:
            slope = statistics.linear_regression(*zip(*points, strict=True)).slope
            lines.append(f"trend: {slope:+.3g} {name} per hour")
    return lines


def median_of(samples: Sequence[Reading], name: str) -> float | None:
    values = [sample[name] for sample in samples if name in sample]
    if not values:
        return None
    return statistics.median(values)


def phases(run: Path) -> list[str]:
    """Return one line per phase that was timed or has a stall: longest duration, timeout and number of incidents."""
    timeouts = AdaptiveTimeouts.read(run / PHASE_TIMEOUTS_FILE)
    stalls = Counter(str(incident["phase"]) for incident in incidents(run))
    lines = [f"phase {name}: {count} incidents" for name, count in stalls.items()]
    if timeouts is not None:
        lines += [
            f"phase {phase.label}: at most {seconds:.1f} s, timeout {timeouts.seconds(phase):.0f} s"
            for phase, seconds in timeouts.longest_s.items()
        ]
    return lines


def recommended(samples: Sequence[Reading], run: Path) -> list[str]:
    """Return the settings that the readings suggest, one per line."""
    lines = []
    status = SupervisorStatus.read(run / SUPERVISOR_FILE)
    if status is not None and status.restarts and status.fallback_level:
        lines.append(f"start at the fallback level of the last restart: {status.fallback_level}")
    wait = median_of(samples[len(samples) // 4 :], "data wait %")
    if wait is not None and wait > LARGEST_WAIT:
        lines.append(
            f"training waits for data {wait:.0f} % of the time: more data.loader.num_workers, or a packed store "
            "(`prepare`)"
        )
    full = max((sample.get("GPU memory %", 0.0) for sample in samples), default=0.0)
    if full > LARGEST_GPU_MEMORY:
        lines.append(
            f"the GPU's memory is {full:.0f} % full: a smaller data.batch_size, or "
            "model.convolution.activation_checkpointing: true"
        )
    return [f"recommended: {line}" for line in lines or ["the settings as they are"]]
