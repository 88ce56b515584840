"""Ends an unsupervised training process that stalls, from a small process beside it (`StallMonitor`).

The small process uses the stall detection and the incident report of the supervisor. A thread of the training process
cannot run while a C call holds the interpreter lock. A timer also counts the time in which the process is suspended.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from yolo_lightning.supervision import evidence
from yolo_lightning.supervision.classify import describe
from yolo_lightning.supervision.evidence import Request, collect
from yolo_lightning.supervision.heartbeat import read_heartbeat
from yolo_lightning.supervision.helper_process import Helper, bounded
from yolo_lightning.supervision.incident import Incident
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.kill import end
from yolo_lightning.supervision.next_action import cause_of_stall
from yolo_lightning.supervision.phase_timeouts import AdaptiveTimeouts, PhaseTimeouts
from yolo_lightning.supervision.processes import STOPPED, is_resource_tracker, tree
from yolo_lightning.supervision.watch import Health, Look, Watch
from yolo_lightning.utils.activity import Activity
from yolo_lightning.utils.process_identity import read_process
from yolo_lightning.utils.run_files import INCIDENT_FILE, has_checkpoint, incident_folder

DISK_WAIT_S = 5.0
OTHERS_REPORT_S = 5.0
"""Seconds between the report and the end of a process, for the reports of other ranks: torchrun ends all."""

START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from yolo_lightning.supervision.stall_process import main; main()"
)


def start_stall_process(
    run: Path, heartbeat: Path, timeout_s: float, suffix: str, *, has_others: bool, further: Mapping[str, Any]
) -> subprocess.Popen[bytes]:
    """Start the process that ends this process after `timeout_s` seconds without a heartbeat.

    Args:
        run: Run folder, which receives the incident report.
        heartbeat: Heartbeat file of this process.
        timeout_s: Timeout of each phase.
        suffix: End of the name of the incident.
        has_others: Whether other ranks stall too and write their reports.
        further: Further entries of the incident report.
    """
    root = Path(__file__).resolve().parents[2]
    job = [os.getpid(), str(run.absolute()), str(heartbeat.absolute()), timeout_s, suffix, has_others, dict(further)]
    words = [sys.executable, "-I", "-S", "-c", START, str(root), json.dumps(job)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)


def main() -> None:
    """Watch the parent process, as the job on the command line says."""
    trainer, run, heartbeat, timeout_s, suffix, has_others, further = json.loads(sys.argv[1])
    path, poll_s = Path(heartbeat), min(1.0, timeout_s / 10)
    minimum = PhaseTimeouts(**{field.name: timeout_s for field in fields(PhaseTimeouts)})
    watch = Watch(
        lambda: read_heartbeat(path, trainer), lambda: _excuse(trainer), AdaptiveTimeouts(minimum, {}), poll_s
    )
    while os.getppid() == trainer:  # the id of a process that has ended can belong to a new process
        time.sleep(poll_s)
        look = watch.look()
        if look.health is Health.STALLED:
            _report(look, trainer, path, incident_folder(Path(run), set(), suffix), further)
            time.sleep(OTHERS_REPORT_S if has_others else 0.0)
            members = [one for one in tree(trainer) if one.pid != os.getpid()]
            end([one for one in members if not is_resource_tracker(one.pid)])  # it unlinks semaphores, and ends
            return


def _excuse(trainer: int) -> str | None:
    process = read_process(trainer)
    return "the training process is stopped" if process is None or process.state in STOPPED else None


def _report(look: Look, trainer: int, heartbeat: Path, folder: Path, further: Mapping[str, Any]) -> None:
    """Write stacks and report, from a helper process because the disk can hang, and print the incident."""
    disk, part_timeout_s = Helper(), SuperviseSettings().part_timeout_s
    request = Request(folder, trainer, heartbeat, look.heartbeat, look.phase, (), part_timeout_s)
    kind = cause_of_stall(look.phase, look.heartbeat.activity if look.heartbeat else Activity.NONE)
    diagnosis = describe(collect(request, lambda path, text: disk.post(evidence.keep, path, text)), kind)
    incident = Incident(folder, look.phase, look.heartbeat, diagnosis, look.waited_s)
    disk.post(evidence.keep, folder / INCIDENT_FILE, incident.report("the training process was killed", **further))
    disk.close(DISK_WAIT_S)
    can_resume = bounded(lambda: has_checkpoint(folder.parents[1]), DISK_WAIT_S)
    hint = "continue with fit --resume" if can_resume else "nothing was saved yet"
    print(f"\nstalled: {incident.sentence()}; stacks in {folder}; {hint}", file=sys.stderr, flush=True)
