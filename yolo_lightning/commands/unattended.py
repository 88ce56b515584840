"""What happens to a run that nobody watches, and the start of such a run: `fit --detach`."""

import shlex
from pathlib import Path
from typing import NoReturn

from yolo_lightning.commands.answers import PROGRAM
from yolo_lightning.supervision.job import Job, SuperviseSettings, start_detached
from yolo_lightning.utils import sensors
from yolo_lightning.utils.host import lingers
from yolo_lightning.utils.run_files import CHECKPOINT_PATTERN, CHECKPOINTS, LOG_FILE

FIRST_BATCH_WAIT_S = 120.0


def unattended(run: Path, settings: SuperviseSettings, *, has_service: bool) -> list[str]:
    """Return the block that a run prints before it is left alone: each event, and what is not covered.

    Args:
        run: Run folder.
        settings: Settings of the supervisor.
        has_service: Whether a systemd unit resumes the run after a reboot.
    """
    open_points = []
    if not (settings.notify.webhook or settings.notify.ping):
        open_points.append("nobody is told when the run ends or gives up: set --supervision.notify.webhook or ping")
    if not has_service:
        open_points.append(f"a reboot or a power cut ends the run: {PROGRAM} service install {shlex.quote(str(run))}")
    elif not lingers():
        open_points.append("the service starts at the log-in and ends with the log-out: loginctl enable-linger")
    space = "free space is unknown"
    if (disk := sensors.disk(run)) is not None:
        space = f"{disk.free_bytes / 1e9:.1f} GB are free"
        sizes = [path.stat().st_size for path in (run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)]
        if largest := max(sizes, default=0):
            space += f", enough for {disk.free_bytes // largest:,} checkpoints"
    patience = f"gives up after {settings.patience_h:g} h without a new checkpoint"
    service = "the service resumes the newest checkpoint" if has_service else "not covered"
    return [
        "If nobody watches this run:",
        f"  hang        the trainer is ended {settings.kill_after_s:g} s after the timeout of its phase, and resumed",
        "  crash       resumes the newest checkpoint, with safer settings if it repeats",
        f"  missing     data, disks, network, devices are waited for; {patience}",
        f"  full disk   training continues, checkpoints wait for space; {space}",
        f"  reboot      {service}",
        "Not covered:" if open_points else "Not covered: a defect of the disk with the run folder (--mirror)",
        *(f"  - {point}" for point in open_points),
    ]


def detach(run: Path, job: Job) -> NoReturn:
    """Start the supervisor of a fit in a session of its own, and end this process.

    Raises:
        SystemExit: With code 0 if the supervisor runs, else with its exit code.
    """
    process, code = start_detached(run, job, FIRST_BATCH_WAIT_S)
    if code is not None:
        raise SystemExit(code if code >= 0 else 1)
    folder = shlex.quote(str(run))
    print(f"\nDetached: process {process} trains in {run}; output: {run / LOG_FILE}")
    print(f"  {PROGRAM} monitor {folder}\n  {PROGRAM} stop {folder}")
    print("\n".join(unattended(run, job.settings, has_service=False)))
    raise SystemExit(0)
