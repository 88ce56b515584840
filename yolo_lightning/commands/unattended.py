"""What happens to a run that nobody watches."""

import shlex
from pathlib import Path

from yolo_lightning.options.command_names import PROGRAM
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.next_action import EARLY_ATTEMPTS
from yolo_lightning.utils import sensors
from yolo_lightning.utils.host import lingers
from yolo_lightning.utils.run_files import CHECKPOINT_PATTERN, CHECKPOINTS


def unattended(run: Path, settings: SuperviseSettings, *, has_service: bool) -> list[str]:
    """Return the block that a run prints before it is left alone: each event, each end, and what is not covered.

    Args:
        run: Run folder.
        settings: Settings of the supervisor.
        has_service: Whether a systemd unit resumes the run after a reboot.
    """
    open_points = []
    if not (settings.notify.webhook or settings.notify.ping):
        open_points.append("nobody is told when the run ends: set --supervision.notify.webhook or ping")
    if not has_service:
        service_command = f"{PROGRAM} service install {shlex.quote(str(run))}"
        open_points.append(f"a reboot, a power cut or a kill of the supervisor ends the run: {service_command}")
    elif not lingers():
        open_points.append("the service starts at the log-in and ends with the log-out: loginctl enable-linger")
    space = "free space is unknown"
    disk = sensors.disk(run)
    if disk is not None:
        space = f"{disk.free_bytes / 1e9:.1f} GB are free"
        sizes = [path.stat().st_size for path in (run / CHECKPOINTS).glob(CHECKPOINT_PATTERN)]
        largest = max(sizes, default=0)
        if largest:
            space += f", enough for {disk.free_bytes // largest:,} checkpoints"
    patience = f"{settings.patience_h:g} h"
    starts = f"{settings.attempts} failed attempts or {min(settings.attempts, EARLY_ATTEMPTS)} hangs of the start"
    service = "not covered"
    if has_service:
        service = "the service resumes the newest checkpoint"
    return [
        "If nobody watches this run:",
        f"  hang        the trainer is ended {settings.kill_after_s:g} s after the timeout of its phase, and resumed",
        "  crash       resumes the newest checkpoint, with safer settings if it repeats",
        f"  missing     data, disks, network, devices are waited for, up to {patience}",
        f"  full disk   training continues, checkpoints wait for space; {space}",
        f"  reboot      {service}",
        "The run ends (exit code):",
        "  finished    after the last step and the work that follows it (0)",
        "  stopped     by a stop signal or `stop` (130, 143, 129), or 77 if a process survives SIGKILL",
        f"  patience    {patience} after the first failure, if no new checkpoint follows (76), or if a process",
        "              survives SIGKILL or the device does not respond for as long (77)",
        "  first step  before it, in a new run and in one that a person resumes: by a mistake of the user (2), by an",
        "              unexpected error (1)",
        f"              before it, in a new run: by two equal errors (1), by {starts} (76),",
        "              by a process that survives SIGKILL or a device that does not respond (77)",
        "Not covered:" if open_points else "Not covered: a defect of the disk with the run folder (--mirror)",
        *(f"  - {point}" for point in open_points),
    ]
