"""What can be seen of a stalled trainer from outside, kept in a folder for a person and returned for the judgement.

Every part runs in a child of its own with a time limit: one that hangs costs that part alone. Nothing here writes to
the run folder: the caller says how files are kept.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from yolo_lightning.supervision.bounded import bounded
from yolo_lightning.supervision.classify import Evidence, Frame, ProcessEvidence, parse_faulthandler, parse_py_spy
from yolo_lightning.supervision.heartbeat import Phase, Progress, stacks_path
from yolo_lightning.supervision.processes import (
    PROC,
    all_processes,
    catches,
    command_line_now,
    read_process,
    tree,
    wait_channel,
)

KFD = Path("/sys/class/kfd/kfd/proc")
GPU_DEVICES = re.compile(r"/dev/(kfd|dri/|nvidia)")
KERNEL_LINES = re.compile(
    r"amdgpu|kfd|nvrm|xid|workqueue|hung_task|blocked for more than|out of memory|oom|segfault", re.I
)
SYSTEM_FILES = ("meminfo", "pressure/memory", "pressure/io", "pressure/cpu", "loadavg", "vmstat")
ENVIRONMENT = re.compile(r"(OMP|MKL|HSA|HIP|ROC|GPU|CUDA|NVIDIA|PYTORCH|TORCH|MIOPEN|AMD|MALLOC)_\w+|LANG|TMPDIR")
"""Names whose values are kept; anything else may be a secret."""

Keep = Callable[[Path, str], None]
"""Stores a text as a file of the bundle, now or later."""

SECRET = re.compile(r"token|key|secret|password|credential", re.I)
PROCESSES_LOOKED_AT = 24
LINES_KEPT = 50


@dataclass(frozen=True, slots=True)
class Request:
    """What to look at.

    Attributes:
        folder: Where to keep it.
        trainer: Process id.
        record: The trainer's progress record.
        progress: As last read, or None.
        phase: As last seen.
        log_lines: Last lines that the trainer wrote.
        part_timeout_s: Seconds that one part may take.
        resample_s: Seconds between the two looks at the trainer's stack.
    """

    folder: Path
    trainer: int
    record: Path
    progress: Progress | None
    phase: Phase
    log_lines: tuple[str, ...]
    part_timeout_s: float
    resample_s: float


def keep(path: Path, text: str) -> None:
    """Write a file of the bundle; a full disk must not cost the evidence itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return


def keep_disk_usage(path: Path, run: Path) -> None:
    """Write how much of the run folder's disk is free."""
    usage = shutil.disk_usage(run)
    keep(path, f"== {run}: {usage.free:,} of {usage.total:,} bytes free\n")


def collect(request: Request, keep: Keep = keep) -> Evidence:
    """Look at everything; takes seconds, and at worst a few of the time limits.

    Args:
        request: What to look at.
        keep: Stores the files of the bundle.
    """
    limit_s = request.part_timeout_s
    evicted_before = bounded(lambda: evicted_ms(request.trainer), limit_s)
    for name, text in simple_parts(request).items():
        keep(request.folder / name, text)
    by_faulthandler = stacks_by_signal(request, keep)
    members = tree(request.trainer)
    ids = [
        request.trainer,
        *(one.pid for one in members if one.pid != request.trainer),
        *dead_children(request.trainer),
    ]
    looks = [look_at(pid, request, keep) for pid in ids[:PROCESSES_LOOKED_AT]]
    time.sleep(request.resample_s)
    trainer = looks[0]
    if not trainer.stack:
        trainer = replace(trainer, stack=by_faulthandler)
    later = bounded(lambda: py_spy(request.trainer, ()), limit_s)
    trainer = replace(trainer, later_stack=parse_py_spy(later or ""))
    evicted_after = bounded(lambda: evicted_ms(request.trainer), limit_s)
    known = evicted_before is not None and evicted_after is not None
    evidence = Evidence(
        phase=request.phase,
        trainer=trainer,
        others=tuple(looks[1:]),
        evicted_ms=(evicted_after or 0) - (evicted_before or 0) if known else None,
        kernel_lines=bounded(kernel_lines, limit_s) or (),
        log_lines=request.log_lines,
    )
    keep(request.folder / "evidence.json", json.dumps(asdict(evidence), indent=2) + "\n")
    return evidence


def simple_parts(request: Request) -> dict[str, str]:
    """Return progress record, last lines of the log, environment and memory, by name of the file."""
    record = None if request.progress is None else asdict(request.progress)
    limit_s = request.part_timeout_s
    return {
        "progress.json": json.dumps(record, indent=2) + "\n",
        "log.txt": "\n".join(request.log_lines) + "\n",
        "environment.txt": bounded(lambda: allowed_environment(request.trainer), limit_s) or "",
        "system.txt": bounded(system_state, limit_s) or "",
    }


def system_state() -> str:
    """Return memory, pressure and shared memory, as text."""
    parts = []
    for name in SYSTEM_FILES:
        try:
            parts.append(f"== /proc/{name}\n{(PROC / name).read_text()}")
        except OSError as error:
            parts.append(f"== /proc/{name}: {error.strerror}\n")
    usage = shutil.disk_usage("/dev/shm")
    parts.append(f"== /dev/shm: {usage.free:,} of {usage.total:,} bytes free\n")
    parts.append("== /dev/shm\n" + "\n".join(sorted(os.listdir("/dev/shm"))) + "\n")
    return "".join(parts)


def allowed_environment(pid: int) -> str:
    """Variables that bear on libraries and GPU, one in a line."""
    try:
        lines = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    kept = [line for line in lines if ENVIRONMENT.fullmatch(name := line.partition("=")[0]) and not SECRET.search(name)]
    return "\n".join(sorted(kept)) + "\n"


def kernel_lines() -> tuple[str, ...]:
    """Last lines of the kernel's log that may matter; none where it may not be read."""
    for command in (("dmesg", "--ctime"), ("journalctl", "--dmesg", "--no-pager", "--lines=2000", "--quiet")):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode == 0 and done.stdout:
            return tuple(line for line in done.stdout.splitlines() if KERNEL_LINES.search(line))[-LINES_KEPT:]
    return ()


def stacks_by_signal(request: Request, keep: Keep) -> tuple[Frame, ...]:
    """Ask the trainer for its stacks, and wait at most a second; only where it has said that it listens."""
    progress = request.progress
    if progress is None or progress.process != request.trainer or not progress.stacks_signal:
        return ()
    if not catches(request.trainer, progress.stacks_signal):  # Lightning takes the handler away when a fit is over
        return ()
    path = stacks_path(request.record)

    def ask() -> str:
        before = path.stat().st_size
        os.kill(request.trainer, signal.Signals(progress.stacks_signal))
        size = before
        for _ in range(20):
            time.sleep(0.05)
            earlier, size = size, path.stat().st_size
            if before < earlier == size:
                break
        return path.read_text(errors="replace")[before:]

    text = bounded(ask, request.part_timeout_s)
    if text is not None:
        keep(request.folder / "stacks.txt", text)
    return parse_faulthandler(text or "")


def dead_children(trainer: int) -> list[int]:
    """Children that have ended and wait to be noticed."""
    return [process.pid for process in all_processes() if process.parent == trainer and process.is_gone]


def look_at(pid: int, request: Request, keep: Keep) -> ProcessEvidence:
    """One process: what /proc and py-spy say."""
    limit_s = request.part_timeout_s
    keep(request.folder / f"process-{pid}.txt", bounded(lambda: kernel_view(pid), limit_s) or "")
    text = bounded(lambda: py_spy(pid, () if pid == request.trainer else ("--locals",)), limit_s) or ""
    keep(request.folder / f"py-spy-{pid}.txt", text)
    process = read_process(pid)
    return ProcessEvidence(
        pid=pid,
        command=bounded(lambda: command_line_now(pid), limit_s) or "",
        state=process.state if process else "X",
        wait_channel=" ".join((wait_channel(pid), bounded(lambda: gpu_call(pid), limit_s) or "")).strip(),
        stack=parse_py_spy(text),
    )


def kernel_view(pid: int) -> str:
    """What /proc says of each thread, as text; the kernel's stack only for root."""
    parts = []
    try:
        parts.append(f"== open files: {len(os.listdir(PROC / str(pid) / 'fd'))}\n")
        threads = sorted(os.listdir(PROC / str(pid) / "task"), key=int)
    except OSError as error:
        return f"process {pid}: {error.strerror}\n"
    for thread in threads:
        for name in ("stat", "status", "wchan", "syscall", "stack"):
            try:
                text = (PROC / str(pid) / "task" / thread / name).read_text(errors="replace").rstrip()
            except OSError as error:
                text = str(error.strerror)
            parts.append(f"== thread {thread} {name}\n{text}\n")
    return "".join(parts)


def gpu_call(pid: int) -> str:
    """The GPU device that the main thread is inside a call of; empty for none."""
    words = (PROC / str(pid) / "syscall").read_text().split()
    if len(words) < 3 or not words[1].startswith("0x"):
        return ""
    try:
        device = os.readlink(PROC / str(pid) / "fd" / str(int(words[1], 16)))
    except OSError:
        return ""
    return f"call of {device}" if GPU_DEVICES.match(device) else ""


def py_spy(pid: int, options: Sequence[str]) -> str:
    """Python stacks of a process; empty where py-spy is not installed or not allowed.

    Without `--nonblocking` it waits for ever on a process that hangs in the kernel.
    """
    program = shutil.which(
        "py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    if program is None:
        return ""
    done = subprocess.run(
        [program, "dump", "--nonblocking", *options, "--pid", str(pid)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout


def evicted_ms(pid: int) -> int | None:
    """For how long the kernel has stopped the process's GPU queues (AMD), over all GPUs; None without one."""
    found = [int(path.read_text()) for path in (KFD / str(pid)).glob("stats_*/evicted_ms")]
    return sum(found) if found else None
