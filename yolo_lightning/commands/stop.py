"""`python -m yolo_lightning stop RUN`: stops a run and waits until its checkpoint is written."""

import os
import select
import signal
import socket
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import newest_checkpoint, steps_trained
from yolo_lightning.checkpoints.run_folder import runs
from yolo_lightning.commands.monitor.read_run import check_holds_run
from yolo_lightning.commands.service import unit_file
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.heartbeat import Heartbeat, read_heartbeat
from yolo_lightning.supervision.run_lock import Holder, current_holder
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.process_identity import started_ticks
from yolo_lightning.utils.run_files import CHECKPOINTS, HEARTBEAT_FILE, is_finished


def stop(run: Path, *, wait_s: float = 600.0) -> None:
    """Stop a run after its current step, wait until the checkpoint is written, and print its name.

    A supervised run has `supervision.grace_s` to write the checkpoint. Repeat the command to end a run that does not
    respond; the newest checkpoint is kept.

    Args:
        run: Run folder. If no process trains there, but in a folder with this name and a number, that run is stopped.
        wait_s: Longest wait, seconds. The command then exits with code 1; the run is still told to stop.
    """
    if wait_s < 0:
        raise UserError(f"--wait_s must be >= 0, got {wait_s}")
    if run.is_file():
        check_holds_run(run)
    folder = run
    busy_runs = [folder for folder in runs(run) if current_holder(folder) is not None]
    if busy_runs and current_holder(run) is None:
        folder = busy_runs[0]
    holder = current_holder(folder)
    if holder is None:
        check_holds_run(folder)
        print(f"{folder}: no process trains here; {saved(folder)}")
        return
    process = _open(folder, holder)
    print(f"{folder}: stops process {holder.process} after the current step", flush=True)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], wait_s)[0]:
        print(f"{folder}: process {holder.process} has not ended within {wait_s:g} s; see monitor {folder}")
        raise SystemExit(ExitCode.FAILED)
    print(f"{folder}: {saved(folder)}")
    if unit_file(folder).is_file():
        print(f"The next boot resumes this run, unless: python -m yolo_lightning service remove {folder}")


def saved(folder: Path) -> str:
    """Return the last step and the newest checkpoint of a run that has ended."""
    newest, _ = newest_checkpoint(folder / CHECKPOINTS)
    if is_finished(folder):
        return f"finished; newest checkpoint: {newest}"
    if newest is None:
        return "stopped; there is no checkpoint"
    steps = steps_trained(newest)
    text = f"stopped after step {steps}, saved in {newest}"
    heartbeat = read_heartbeat(folder / HEARTBEAT_FILE)
    if isinstance(heartbeat, Heartbeat) and heartbeat.step > steps:
        text += f"; {heartbeat.step - steps} later steps are trained again"
    return f"{text}; the fit command with --resume continues"


def _open(folder: Path, holder: Holder) -> int:
    """Return a descriptor of the process that trains in a folder; unlike an id it never means another process."""
    who = f"{folder} is in use by process {holder.process} on {holder.host}"
    if holder.host != socket.gethostname():
        raise UserError(f"{who}: run this command there")
    try:
        process = os.pidfd_open(holder.process)
    except ProcessLookupError:
        process = -1
    if process < 0 or holder.started_ticks not in (0, started_ticks(holder.process)):
        raise UserError(f"{who}, which cannot be seen from here: run this command in its container")
    return process
