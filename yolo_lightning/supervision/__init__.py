"""Supervision of a fit by an outside process: detects stalls, writes incident reports, kills and restarts the trainer.

Imports neither torch nor Lightning: the supervisor uses no GPU, no threads and little memory. Reading order::

    job                         settings, commands, progress    supervisor          attempts and restarts
    attempt                     one attempt                     trainer             the trainer process, its output
    heartbeat, live_heartbeat   the heartbeat file              watch               detection of stalls
    phase_timeouts              timeout of each phase           classify            class of a stall (pure)
    evidence, incident          the incident report             outcome             meaning of an exit, full disk
    kill                        ends all processes              restart_policy      what follows an attempt (pure)
    run_disk, helper_process    file access that cannot block   fallback            loader settings, fast to safe
    announcer, notify           status file and notifications   detach              a session of its own
    stall_process               stalls without a supervisor     watches             readings over minutes
"""

from yolo_lightning.supervision.fallback_levels import level_of_launch
from yolo_lightning.supervision.job import Job, SuperviseSettings, become_supervisor
from yolo_lightning.supervision.kill import mark_process, remove_files_of_dead_processes
from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.supervision.restart_policy import quarantined
from yolo_lightning.supervision.run_lock import RunInUseError, in_use, reserve, run_lock
from yolo_lightning.supervision.trainer import end_with_launcher, is_supervised

__all__ = [
    "Job",
    "NotifySettings",
    "RunInUseError",
    "SuperviseSettings",
    "become_supervisor",
    "end_with_launcher",
    "in_use",
    "is_supervised",
    "level_of_launch",
    "mark_process",
    "quarantined",
    "remove_files_of_dead_processes",
    "reserve",
    "run_lock",
]
