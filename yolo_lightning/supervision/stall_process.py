"""Ends an unsupervised training process that stalls, from a small process beside it (`StallMonitor`).

The small process uses the stall detection and the incident report of the supervisor. A thread of the training process
cannot run while a C call holds the interpreter lock. A timer also counts the time in which the process is suspended.
"""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from yolo_lightning.supervision.evidence import Request, examine, keep
from yolo_lightning.supervision.helper_process import Helper, bounded
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.kill import end
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.processes import STOPPED, is_resource_tracker, tree
from yolo_lightning.supervision.rank_status import RankStatus, read_ranks, write_rank
from yolo_lightning.supervision.watch import Look, Watch
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.distributed import line_prefix, rank_suffix
from yolo_lightning.utils.process_identity import read_process
from yolo_lightning.utils.run_files import INCIDENT_FILE, has_checkpoint, incident_folder

DISK_WAIT_S = 5.0
STATUS_INTERVAL_S = 10.0
OTHERS_REPORT_S = 5.0
"""Seconds between the report and the end of a process, for the reports of other ranks: torchrun ends all."""

START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from yolo_lightning.supervision.stall_process import main; main()"
)


@dataclass(frozen=True, slots=True)
class StallJob:
    """What the process beside a training process does, as JSON on its command line."""

    trainer: int  # process id of the training process
    run: str  # absolute path of the run folder
    heartbeat: str  # absolute path of the heartbeat file of the training process
    timeout_s: float  # of each phase
    rank: int
    ranks: int  # several ranks stall together, and each of them writes its report
    further: dict[str, Any]  # further entries of the incident report


def start_stall_process(job: StallJob) -> subprocess.Popen[bytes]:
    """Start the process that ends `job.trainer` after `job.timeout_s` seconds without a heartbeat.

    Several ranks also write their status into the run folder.
    """
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-I", "-S", "-c", START, str(root), json.dumps(asdict(job))]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    """Watch the parent process, as the job on the command line says."""
    job = StallJob(**json.loads(sys.argv[1]))
    poll_s = min(1.0, job.timeout_s / 10)
    minimum = PhaseTimeouts(**{field.name: job.timeout_s for field in fields(PhaseTimeouts)})
    timeouts = AdaptiveTimeouts(minimum, {})
    watch = Watch(Path(job.heartbeat), job.trainer, _excuse, timeouts, poll_s)
    disk = Helper()  # the disk of the run folder can hang
    written_s = -math.inf
    while os.getppid() == job.trainer:  # the id of a process that has ended can belong to a new process
        time.sleep(poll_s)
        look = watch.look()
        is_due = look.is_stalled or time.monotonic() >= written_s + STATUS_INTERVAL_S
        if job.ranks > 1 and is_due and look.is_readable:
            written_s = time.monotonic()
            disk.post(write_rank, Path(job.run), RankStatus.of(job.rank, look.heartbeat, look.waited_s))
        if look.is_stalled:
            _report(look, job, disk)
            time.sleep(OTHERS_REPORT_S if job.ranks > 1 else 0.0)
            members = [process for process in tree(job.trainer) if process.pid != os.getpid()]
            end([process for process in members if not is_resource_tracker(process.pid)])  # it unlinks semaphores
            return


def _excuse(trainer: int) -> str | None:
    process = read_process(trainer)
    if process is None or process.state in STOPPED:
        return "the training process is stopped"
    return None


def _report(look: Look, job: StallJob, disk: Helper) -> None:
    """Write stacks and report, and print the incident."""
    run = Path(job.run)
    folder = incident_folder(run, set(), rank_suffix(job.rank))
    part_timeout_s = SuperviseSettings().part_timeout_s
    request = Request(folder, disk, job.trainer, Path(job.heartbeat), look.heartbeat, (), part_timeout_s)
    diagnosis = examine(request)
    if look.heartbeat.activity is Activity.EXCHANGE:
        diagnosis = replace(diagnosis, sentence=f"{diagnosis.sentence}; {_awaited(run, look.waited_s)}")
    incident = Incident(folder, look.heartbeat, diagnosis, look.waited_s, job.rank)
    disk.post(keep, folder / INCIDENT_FILE, incident.report("the training process was killed", **job.further))
    disk.close(DISK_WAIT_S)
    can_resume = bounded(lambda: has_checkpoint(run), DISK_WAIT_S)
    hint = "continue with fit --resume" if can_resume else "nothing was saved yet"
    line = f"stalled: {incident.sentence()}; stacks in {folder}; {hint}"
    print(f"\n{line_prefix(job.rank)}{line}", file=sys.stderr, flush=True)


def _awaited(run: Path, waited_s: float) -> str:
    """Return which ranks a rank waits for that has waited for `waited_s` seconds."""
    statuses = bounded(lambda: read_ranks(run), DISK_WAIT_S) or []
    hanging = [status for status in statuses if not status.is_waiting and status.waited_s > waited_s / 2]
    names = [f"rank {status.rank} on {status.place}" for status in hanging]
    return f"it waits for {', '.join(names) or 'other ranks'}"
