"""Runs the arms of the hang study one after another; each writes a CSV file and its result.

An arm that hangs is recorded and killed, and the next one starts. An interrupted study resumes at the first arm that
has no result.
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hang_experiment.arm import Copy
from hang_experiment.conclusion import ARMS, Arm, ArmResult, End, conclude, markdown
from hang_experiment.watch import ArmWatch, StudyLimits
from yolo_lightning.commands.doctor.probes import Probe, run_probe
from yolo_lightning.supervision.child_process import Child
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.files import replacing, sole_writer, write_json

TABLE = "hang-study.md"
STAGING = {"GPU_PINNED_MIN_XFER_SIZE": "131072"}
"""In KiB: copies up to 128 MiB use buffers of the ROCm runtime instead of registering the batch."""
FRAMES = 8
BATCH_BYTES = 4 * 3 * 640 * 640
"""Size of one frame in float32."""
BATCHES_IN_FLIGHT = 8
ANSWER_S = 120.0
"""Time limit of a test of the device, in seconds."""

ARM = Path(__file__).with_name("arm.py")


@dataclass(frozen=True, slots=True)
class Study:
    """Options of a study."""

    folder: Path  # of the results
    device: str  # device name of torch, or auto
    seconds: float  # duration of an arm
    frames: int = FRAMES  # frames of 640 x 640 in a batch; 8 are 37.5 MiB
    arms: tuple[Arm, ...] = ARMS
    limits: StudyLimits = field(default_factory=StudyLimits)


def run_study(study: Study, log: Callable[[str], None]) -> int:
    """Run the arms that have no result yet, and write the table after each.

    Args:
        study: Options.
        log: Called with each line of the log.

    Returns:
        Exit code: 0 if every arm has a result, 1 otherwise, 130 after Ctrl-C.

    Raises:
        ValueError: If an option is invalid, no GPU exists, or the folder cannot be written.
    """
    if not study.seconds > 0:
        raise ValueError(f"--hours_per_arm must be > 0, got {study.seconds / 3600:g}.")
    device, name = choose_device(study.device)
    check_shared_memory(study.frames * BATCH_BYTES * BATCHES_IN_FLIGHT)
    try:
        study.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(study.folder / "study.lock"):
            return _run_arms(study, device, name, log)
    except OSError as error:
        raise ValueError(f"--study_folder {study.folder} cannot be written: {error}") from error
    except KeyboardInterrupt:
        log(f"interrupted: results of finished arms are in {study.folder}; the same command resumes the study")
        return INTERRUPTED


def choose_device(device: str) -> tuple[str, str]:
    """Return the device and its name; the CPU only for `device` cpu.

    Raises:
        ValueError: If the device does not exist or does not work.
    """
    result = run_probe(Probe.DEVICE, device, ANSWER_S)
    if not result.works:
        raise ValueError(f"--device {device} cannot be used: it {result.outcome}, {result.detail}")
    found = str(result.facts["device"])
    if found == "cpu" and device != "cpu":
        raise ValueError(
            f"--device {device} needs a GPU, and torch finds none. --device cpu rehearses the study without a GPU."
        )
    return found, str(result.facts["name"]) or "CPU, a rehearsal"


def check_shared_memory(needed_bytes: int, folder: Path = Path("/dev/shm")) -> None:
    """Check that the batches of the workers fit into shared memory.

    Raises:
        ValueError: If they do not fit.
    """
    free_bytes = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free_bytes < needed_bytes:
        raise ValueError(
            f"{folder} has {free_bytes >> 20} MiB free, the study needs {needed_bytes >> 20} MiB. "
            "Start the container with --shm-size 1g."
        )


def _run_arms(study: Study, device: str, name: str, log: Callable[[str], None]) -> int:
    title = f"{name}, {device}, {study.seconds:g} s per arm, batches of {study.frames * BATCH_BYTES / 2**20:.1f} MiB"
    results: dict[Arm, ArmResult] = {}
    for number, arm in enumerate(study.arms, 1):
        kept = read_result(study, arm, title)
        if kept is not None:
            log(f"arm {number} of {len(study.arms)}, {arm}: already finished, {kept.end}")
            results[arm] = kept
            continue
        log(f"arm {number} of {len(study.arms)}, {arm}: for {study.seconds / 3600:.2g} h")
        results[arm], survivors = run_arm(study, arm, device)
        write_result(study, results[arm], title)
        write_table(study.folder, list(results.values()), title)
        log(f"  {describe(results[arm])}")
        trouble = survivors or ("" if results[arm].end is End.COMPLETE else unanswered(device))
        if trouble:
            log(f"{trouble}. Reboot and run the same command again; it resumes with the next arm.")
            break
    write_table(study.folder, list(results.values()), title)
    for sentence in conclude(list(results.values())):
        log(sentence)
    log(f"table: {study.folder / TABLE}")
    done = [result for result in results.values() if result.end is not End.CRASH]
    return 0 if len(done) == len(study.arms) else 1


def run_arm(study: Study, arm: Arm, device: str) -> tuple[ArmResult, str]:
    """Run one arm, kill it if it hangs, and return its result and the processes that could not be killed."""
    steps = study.folder / f"{arm}.steps"
    steps.unlink(missing_ok=True)
    child = Child(arm_command(study, arm, device, steps.absolute()), STAGING if arm.copy is Copy.STAGED else None)
    try:
        with (study.folder / f"{arm}.csv").open("w", newline="") as table:
            watch = ArmWatch(child.process.pid, steps, table, study.limits)
            end = watch.until_end(child.process.poll)
    finally:
        ended = child.end()
    (study.folder / f"{arm}.kernel.txt").write_text("".join(f"{line}\n" for line in watch.kernel_lines))
    steps.unlink(missing_ok=True)
    detail = "" if end is not End.CRASH else ended.signal_name or " ".join(ended.err[-1:]) or f"exit code {ended.code}"
    stuck = [f"process {pid} cannot be ended ({state})" for pid, state in ended.survivors.items()]
    return watch.result(str(arm), end, detail), "; ".join(stuck)


def arm_command(study: Study, arm: Arm, device: str, steps: Path) -> list[str]:
    """Return the command line of the child process of an arm."""
    words = [sys.executable, str(ARM), arm.start, arm.copy, device]
    return [*words, f"{study.seconds:.3f}", str(study.frames), str(steps)]


def unanswered(device: str) -> str:
    """Return why the next arm cannot run; an empty string if the device works."""
    result = run_probe(Probe.DEVICE, device, ANSWER_S)
    return "" if result.works else f"{device} {result.outcome} ({result.detail})"


def describe(result: ArmResult) -> str:
    """Return a summary in one line."""
    evicted = "evicted_ms unknown" if result.evicted_ms is None else f"evicted_ms {result.evicted_ms:,}"
    crash = f": {result.detail}" if result.detail else ""
    return f"{result.end}{crash}, steps: {result.steps:,}, worker starts: {result.worker_starts:,}, {evicted}"


def read_result(study: Study, arm: Arm, title: str) -> ArmResult | None:
    """Return the stored result of an arm under the same conditions; None if the arm must run."""
    try:
        content = json.loads((study.folder / f"{arm}.json").read_text())
        result = ArmResult(**(content["result"] | {"end": End(content["result"]["end"])}))
        same = content["conditions"] == title
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if same and result.end is not End.CRASH else None


def write_result(study: Study, result: ArmResult, title: str) -> None:
    """Store a result atomically."""
    write_json(study.folder / f"{result.arm}.json", {"conditions": title, "result": asdict(result)})


def write_table(folder: Path, results: list[ArmResult], title: str) -> None:
    """Write the Markdown table atomically."""
    with replacing(folder / TABLE) as temporary:
        temporary.write_text(markdown(results, title))
