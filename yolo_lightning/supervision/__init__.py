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
