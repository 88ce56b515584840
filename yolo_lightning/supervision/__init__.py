"""Supervision of a fit by an outside process: detects stalls, writes incident reports, kills and restarts the trainer.

Imports neither torch nor Lightning: the supervisor uses no GPU, no threads and little memory. Reading order::

    job                         settings, commands, start       supervisor          carries out what is decided
    heartbeat, live_heartbeat   the heartbeat file              attempt             one trainer from start to end
    failure_record              exception of the trainer        trainer             the trainer process, its output
    phase_timeouts              timeout of each phase           watch               detection of stalls
    evidence, incident          the incident report             classify            evidence in stacks (pure)
    kill                        ends all processes              outcome             evidence in output, full disk
    run_disk, helper_process    file access that cannot block   next_action         cause and reaction: all rules (pure)
    announcer, notify           status file and notifications   fallback_levels     settings, from fast to safe
    stall_process               stalls without a supervisor     watches             readings over minutes
    rank_status                 what each rank does
"""

from yolo_lightning.supervision.fallback_levels import level_of_launch, quarantined
from yolo_lightning.supervision.job import Job, SuperviseSettings, become_supervisor
from yolo_lightning.supervision.kill import mark_process, remove_files_of_dead_processes
from yolo_lightning.supervision.notify import NotifySettings
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
