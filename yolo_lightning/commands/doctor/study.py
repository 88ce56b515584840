"""The hang study: six arms, one after another, unattended; each leaves a CSV file and its result.

An arm that hangs is recorded and ended, and the study goes on. Run again, it goes on where it was stopped.
"""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from yolo_lightning.commands.doctor.child import Child
from yolo_lightning.commands.doctor.probes import Probe, run_probe
from yolo_lightning.commands.doctor.study_table import ARMS, Arm, ArmResult, Copy, End, conclude, markdown
from yolo_lightning.commands.doctor.study_watch import ArmWatch, StudyLimits
from yolo_lightning.utils.files import replacing, sole_writer, write_json

TABLE = "hang-study.md"
STAGING = {"GPU_PINNED_MIN_XFER_SIZE": "131072"}
"""In KiB: copies up to 128 MiB go through the runtime's own buffers instead of registering the batch."""
FRAMES = 8
BATCH_BYTES = 4 * 3 * 640 * 640
"""Of one frame in float32."""
BATCHES_IN_FLIGHT = 8
ANSWER_S = 120.0
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


@dataclass(frozen=True, slots=True)
class Study:
    """What to study.

    Attributes:
        folder: Where the results go.
        device: As torch calls it, or auto.
        seconds: Length of an arm.
        frames: Frames of 640 x 640 in a batch; 8 make 37.5 MiB.
        arms: Which ones.
        limits: When an arm counts as hung.
    """

    folder: Path
    device: str
    seconds: float
    frames: int = FRAMES
    arms: tuple[Arm, ...] = ARMS
    limits: StudyLimits = field(default_factory=StudyLimits)


def run_study(study: Study, say: Callable[[str], None]) -> int:
    """Run the arms that have no result yet, and write the table after each.

    Args:
        study: What to do.
        say: Told what happens.

    Returns:
        Exit code: 0 where every arm has a result, 1 otherwise.

    Raises:
        ValueError: If an option is not allowed, there is no GPU, or the folder cannot be used.
    """
    if not study.seconds > 0:
        raise ValueError(f"hours_per_arm is {study.seconds / 3600:g}, allowed are numbers above 0")
    device, name = choose_device(study.device)
    check_shared_memory(study.frames * BATCH_BYTES * BATCHES_IN_FLIGHT)
    try:
        study.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(study.folder / "study.lock"):
            return _run_arms(study, device, name, say)
    except OSError as error:
        raise ValueError(f"study_folder {study.folder} cannot be written: {error}") from error
    except KeyboardInterrupt:
        say(f"interrupted: finished arms in {study.folder} are kept, the same command goes on")
        return INTERRUPTED


def choose_device(device: str) -> tuple[str, str]:
    """The device and its name; a CPU only where it was asked for.

    Raises:
        ValueError: If there is no such device.
    """
    result = run_probe(Probe.DEVICE, device, ANSWER_S)
    if not result.works:
        raise ValueError(f"device {device} cannot be used: it {result.outcome}, {result.detail}")
    found = str(result.facts["device"])
    if found == "cpu" and device != "cpu":
        raise ValueError(
            f"device is {device!r}, and torch sees no GPU: the study needs one; --device cpu rehearses it without"
        )
    return found, str(result.facts["name"]) or "CPU, a rehearsal"


def check_shared_memory(needed_bytes: int, folder: Path = Path("/dev/shm")) -> None:
    """Refuse where the batches of the workers do not fit.

    Raises:
        ValueError: If they do not.
    """
    free_bytes = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free_bytes < needed_bytes:
        raise ValueError(
            f"{folder} has {free_bytes >> 20} MiB free, the study needs {needed_bytes >> 20} MiB: "
            "start the container with --shm-size 1g"
        )


def _run_arms(study: Study, device: str, name: str, say: Callable[[str], None]) -> int:
    title = f"{name}, {device}, {study.seconds:g} s per arm, batches of {study.frames * BATCH_BYTES / 2**20:.1f} MiB"
    results: dict[Arm, ArmResult] = {}
    for number, arm in enumerate(study.arms, 1):
        kept = read_result(study, arm, title)
        if kept is not None:
            say(f"arm {number} of {len(study.arms)}, {arm}: done before, {kept.end}")
            results[arm] = kept
            continue
        say(f"arm {number} of {len(study.arms)}, {arm}: for {study.seconds / 3600:.2g} h")
        results[arm], survivors = run_arm(study, arm, device)
        write_result(study, results[arm], title)
        write_table(study.folder, list(results.values()), title)
        say(f"  {describe(results[arm])}")
        trouble = survivors or ("" if results[arm].end is End.COMPLETE else unanswered(device))
        if trouble:
            say(f"{trouble}. Reboot, and start the same command again: it goes on with the next arm.")
            break
    write_table(study.folder, list(results.values()), title)
    for sentence in conclude(list(results.values())):
        say(sentence)
    say(f"table: {study.folder / TABLE}")
    done = [result for result in results.values() if result.end is not End.CRASH]
    return 0 if len(done) == len(study.arms) else 1


def run_arm(study: Study, arm: Arm, device: str) -> tuple[ArmResult, str]:
    """Run one arm to its end, or end it; returns its result, and which processes could not be ended."""
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
    stuck = [f"process {pid} cannot be ended ({where})" for pid, where in ended.survivors.items()]
    return watch.result(str(arm), end, detail), "; ".join(stuck)


def arm_command(study: Study, arm: Arm, device: str, steps: Path) -> list[str]:
    """Words of the command line of an arm's child."""
    words = [sys.executable, "-m", "yolo_lightning.commands.doctor", "arm", arm.start, arm.copy, device]
    return [*words, f"{study.seconds:.3f}", str(study.frames), str(steps)]


def unanswered(device: str) -> str:
    """Why the next arm cannot be run; empty where the device answers."""
    result = run_probe(Probe.DEVICE, device, ANSWER_S)
    return "" if result.works else f"{device} {result.outcome} ({result.detail})"


def describe(result: ArmResult) -> str:
    """In one line."""
    evicted = "evicted_ms unknown" if result.evicted_ms is None else f"evicted_ms {result.evicted_ms:,}"
    crash = f": {result.detail}" if result.detail else ""
    return f"{result.end}{crash}, steps: {result.steps:,}, starts of workers: {result.worker_starts:,}, {evicted}"


def read_result(study: Study, arm: Arm, title: str) -> ArmResult | None:
    """What was found before, under the same conditions; None where the arm is to be run."""
    try:
        content = json.loads((study.folder / f"{arm}.json").read_text())
        result = ArmResult(**(content["result"] | {"end": End(content["result"]["end"])}))
        same = content["conditions"] == title
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if same and result.end is not End.CRASH else None


def write_result(study: Study, result: ArmResult, title: str) -> None:
    """Keep a result, whole or not at all."""
    write_json(study.folder / f"{result.arm}.json", {"conditions": title, "result": asdict(result)})


def write_table(folder: Path, results: list[ArmResult], title: str) -> None:
    """Write the Markdown table."""
    with replacing(folder / TABLE) as temporary:
        temporary.write_text(markdown(results, title))
