"""Find out what stops the GPU queues of an AMD card: six trainings ("arms") that differ in start method and copy mode.

    python scripts/hang_study.py                     one hour per arm, on the GPU
    python scripts/hang_study.py --hours_per_arm 4
    python scripts/hang_study.py --device cpu --hours_per_arm 0.01    rehearsal without a GPU

Runs unattended. An arm that hangs is recorded and killed, and the next arm starts. The same command resumes an
interrupted study. docs/doctor.md explains the arms and the results. Exit code 0 if every arm has a result, 1 if not, 2
for an invalid option.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hang_experiment import arm as arm_script
from hang_experiment.conclusion import ARMS, ArmResult, End, conclude, markdown
from hang_experiment.watch import ArmWatch, StudyLimits

from yolo_lightning.commands.doctor.command import check_device
from yolo_lightning.commands.doctor.probes import Probe, run_probe
from yolo_lightning.supervision.child_process import Child
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.files import replacing, sole_writer, write_json

TABLE = "hang-study.md"
STAGING = {"GPU_PINNED_MIN_XFER_SIZE": "131072"}
"""In KiB: copies up to 128 MiB use buffers of the ROCm runtime instead of registering the batch."""
FRAME_BYTES = 4 * 3 * 640 * 640
BATCHES_IN_FLIGHT = 8
ANSWER_S = 120.0
"""Time limit of a test of the device, in seconds."""


@dataclass(frozen=True, slots=True)
class Study:
    """Options of a study."""

    folder: Path  # of the results
    device: str  # device name of torch, or auto
    seconds: float  # duration of an arm
    frames: int = 8  # float32 frames of 640 x 640 in a batch; 8 are 37.5 MiB
    arms: tuple[str, ...] = ARMS
    limits: StudyLimits = field(default_factory=StudyLimits)


def main() -> int:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto (the GPU that torch finds), cuda, cuda:1 or cpu")
    parser.add_argument("--hours_per_arm", type=float, default=1.0, help="duration of each arm (default: %(default)s)")
    parser.add_argument(
        "--study_folder", type=Path, default=Path("hang-study"), help="folder of the results (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        check_device(options.device)
        study = Study(options.study_folder.expanduser(), options.device, seconds=3600 * options.hours_per_arm)
        return run_study(study, lambda text: print(text, flush=True))
    except ValueError as error:
        parser.error(str(error))


def run_study(study: Study, log: Callable[[str], None]) -> int:
    """Run the arms that have no result yet, and write the table after each; `log` is called with each line.

    Returns the exit code: 0 if every arm has a result, 1 otherwise, 130 after Ctrl-C.

    Raises:
        ValueError: If an option is invalid, no GPU exists, or the folder cannot be written.
    """
    if not study.seconds > 0:
        raise ValueError(f"--hours_per_arm must be > 0, got {study.seconds / 3600:g}.")
    device, name = choose_device(study.device)
    check_shared_memory(study.frames * FRAME_BYTES * BATCHES_IN_FLIGHT)
    mib = study.frames * FRAME_BYTES / 2**20
    title = f"{name}, {device}, {study.seconds:g} s per arm, batches of {mib:.1f} MiB"
    try:
        study.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(study.folder / "study.lock"):
            results = run_arms(study, device, title, log)
    except OSError as error:
        raise ValueError(f"--study_folder {study.folder} cannot be written: {error}") from error
    except KeyboardInterrupt:
        log(f"interrupted: results of finished arms are in {study.folder}; the same command resumes the study")
        return INTERRUPTED
    for sentence in conclude(results):
        log(sentence)
    log(f"table: {study.folder / TABLE}")
    return int(sum(result.end is not End.CRASH for result in results) < len(study.arms))


def choose_device(device: str) -> tuple[str, str]:
    """Return the device and its name, the CPU only for `device` cpu; raise ValueError if the device does not work."""
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
    """Raise ValueError if the batches of the workers do not fit into shared memory."""
    free_bytes = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free_bytes < needed_bytes:
        raise ValueError(
            f"{folder} has {free_bytes >> 20} MiB free, the study needs {needed_bytes >> 20} MiB. "
            "Start the container with --shm-size 1g."
        )


def run_arms(study: Study, device: str, title: str, log: Callable[[str], None]) -> list[ArmResult]:
    """Run the arms one after another, and return the results, until the device or a process needs a reboot."""
    results: list[ArmResult] = []
    for number, arm in enumerate(study.arms, 1):
        prefix = f"arm {number} of {len(study.arms)}, {arm}"
        if (kept := read_result(study, arm, title)) is not None:
            log(f"{prefix}: already finished, {kept.end}")
            results.append(kept)
            write_table(study, results, title)
            continue
        log(f"{prefix}: for {study.seconds / 3600:.2g} h")
        result, trouble = run_arm(study, arm, device)
        results.append(result)
        write_json(study.folder / f"{arm}.json", {"conditions": title, "result": asdict(result)})
        write_table(study, results, title)
        evicted = "unknown" if result.evicted_ms is None else f"{result.evicted_ms:,}"
        crash = f": {result.detail}" if result.detail else ""
        counts = f"steps: {result.steps:,}, worker starts: {result.worker_starts:,}, evicted_ms {evicted}"
        log(f"  {result.end}{crash}, {counts}")
        if not trouble and result.end is not End.COMPLETE:
            answer = run_probe(Probe.DEVICE, device, ANSWER_S)
            trouble = "" if answer.works else f"{device} {answer.outcome} ({answer.detail})"
        if trouble:
            log(f"{trouble}. Reboot and run the same command again; it resumes with the next arm.")
            break
    return results


def write_table(study: Study, results: list[ArmResult], title: str) -> None:
    with replacing(study.folder / TABLE) as temporary:
        temporary.write_text(markdown(results, title))


def run_arm(study: Study, arm: str, device: str) -> tuple[ArmResult, str]:
    """Run one arm, kill it if it hangs, and return its result and the processes that could not be killed."""
    steps = study.folder / f"{arm}.steps"
    steps.unlink(missing_ok=True)
    child = Child(arm_command(study, arm, device, steps.absolute()), STAGING if arm.endswith("staged") else None)
    try:
        with (study.folder / f"{arm}.csv").open("w", newline="") as table:
            watch = ArmWatch(child.process.pid, steps, table, study.limits)
            end = watch.until_end(child.process.poll)
    finally:
        ended = child.end()
    (study.folder / f"{arm}.kernel.txt").write_text("".join(f"{line}\n" for line in watch.kernel_lines))
    detail = "" if end is not End.CRASH else ended.signal_name or " ".join(ended.err[-1:]) or f"exit code {ended.code}"
    result = watch.result(arm, end, detail)
    steps.unlink(missing_ok=True)
    return result, "; ".join(f"process {pid} cannot be ended ({state})" for pid, state in ended.survivors.items())


def arm_command(study: Study, arm: str, device: str, steps: Path) -> list[str]:
    """Return the command line of the child process of an arm."""
    words = [sys.executable, str(arm_script.__file__), *arm.split("-"), device]
    return [*words, f"{study.seconds:.3f}", str(study.frames), str(steps)]


def read_result(study: Study, arm: str, title: str) -> ArmResult | None:
    """Return the stored result of an arm under the same conditions; None if the arm must run."""
    try:
        content = json.loads((study.folder / f"{arm}.json").read_text())
        result = ArmResult(**(content["result"] | {"end": End(content["result"]["end"])}))
        same = content["conditions"] == title
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return result if same and result.end is not End.CRASH else None


if __name__ == "__main__":
    sys.exit(main())
