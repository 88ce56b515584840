"""Rows 21 to 23, 30 and 41: checkpoints, disks, the progress record, the configuration."""

import os
import signal
import time
from dataclasses import fields
from pathlib import Path

from faults.case import AT_ONCE_S, Case, Report
from faults.outside import (
    Deed,
    at_step,
    damage_checkpoints,
    edit,
    empty,
    flip,
    freeze,
    limit_files,
    lose_record,
    replace_by_folder,
    replace_by_text,
    to_trainer,
    truncate,
)
from faults.run import Run
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.phase_timeouts import Floors

UNKNOWN = StallClass.UNKNOWN
KILLED = Report(UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S)
REFUSED = Report(UNKNOWN, ("exit code 2",))
SMALL_BYTES = 1 << 20
DAY_S = 86_400.0
LARGEST_S = 25.0
SLACK_S = 10.0


def damaged(name: str, fault: str, deed: Deed, *log: str, lost_steps: int = 10) -> Case:
    """The trainer is killed, and its newest checkpoint is damaged before it comes back."""
    deeds = (to_trainer(signal.SIGSTOP, is_fault=False), deed, to_trainer(signal.SIGKILL))
    return Case(name, fault, outside=(at_step(12, *deeds),), reports=(KILLED,), lost_steps=lost_steps, log=log)


def killed_and_changed(name: str, fault: str, *log: str, codes: tuple[int, ...] = (0,), **values: object) -> Case:
    """The configuration is another one when the trainer comes back."""
    reports = (KILLED,) if codes == (0,) else (KILLED, REFUSED)
    outside = (at_step(8, edit(**values), to_trainer(signal.SIGKILL)),)
    return Case(name, fault, outside=outside, reports=reports, codes=codes, log=log, exact=False)


def set_clock_back(run: Run) -> None:
    """Date all checkpoints a day ahead, as if the clock had been set back since they were written."""
    future_s = time.time() + DAY_S
    for path in (run.run_folder / "checkpoints").iterdir():
        os.utime(path, (future_s, future_s))


def untouched(run: Run) -> list[str]:
    """Whether the damaged checkpoints are as they were found."""
    folder = run.run_folder / "checkpoints"
    now = {path.name: path.read_bytes()[:64] for path in folder.glob("*.ckpt")}
    return [] if now == run.notes["damaged"] else ["checkpoints that could not be used were changed"]


def steps_trained(steps: int) -> "object":
    """A check of how long was trained."""

    def check(run: Run) -> list[str]:
        last = run.beats[-1].step
        return [] if last == steps else [f"{last} steps trained instead of {steps}"]

    return check


def disk_full(name: str, fault: str, begin: int, end: int, size_bytes: int, *log: str, exact_best: bool = True) -> Case:
    """The trainer's files cannot grow for some steps."""
    outside = (at_step(begin, limit_files(size_bytes)), at_step(end, limit_files(None)))
    return Case(name, fault, outside=outside, log=log, exact_best=exact_best)


CASES = (
    damaged("21a", "newest checkpoint cut in half", damage_checkpoints(1, truncate), "skipped", "bytes instead of"),
    damaged("21b", "newest checkpoint empty", damage_checkpoints(1, empty), "skipped", "bytes instead of"),
    damaged("21c", "newest checkpoint with one wrong bit", damage_checkpoints(1, flip), "skipped", "checksum"),
    damaged("21d", "newest checkpoint is another file", damage_checkpoints(1, replace_by_text), "skipped"),
    Case(
        "21e",
        "clock set back by a day, then four kills: all older checkpoints are dated ahead",
        outside=(
            at_step(17, to_trainer(signal.SIGSTOP, is_fault=False), set_clock_back, to_trainer(signal.SIGKILL)),
            *(at_step(step, to_trainer(signal.SIGKILL)) for step in (22, 27, 29)),
        ),
        reports=(KILLED,) * 4,
    ),
    Case(
        "22",
        "all checkpoints damaged",
        outside=(
            at_step(
                12,
                to_trainer(signal.SIGSTOP, is_fault=False),
                damage_checkpoints(None, truncate),
                to_trainer(signal.SIGKILL),
            ),
        ),
        reports=(KILLED, REFUSED),
        codes=(2,),
        log=("nothing to resume: every checkpoint of", "a restart cannot mend that"),
        exact=False,
        lost_steps=None,
        check=untouched,
    ),
    disk_full("23a", "disk full for some saves", 17, 27, SMALL_BYTES, "could not save", "training continues"),
    disk_full("23b", "disk full at the save of the best", 13, 20, SMALL_BYTES, "best.ckpt", exact_best=False),
    Case(
        "23c",
        "disk full for the supervisor's log",
        outside=(at_step(5, limit_files(1, of_supervisor=True)), at_step(25, limit_files(None, of_supervisor=True))),
    ),
    disk_full("23d", "disk full for everything", 7, 12, 1, "training continues"),
    Case(
        "30a",
        "progress record deleted",
        outside=(at_step(8, lose_record(Path.unlink)),),
        log=("blind: there is no record",),
    ),
    Case(
        "30b",
        "progress record cannot be read",
        outside=(at_step(8, lose_record(replace_by_folder)),),
        log=("blind: the record cannot be read",),
    ),
    Case(
        "30c",
        "progress record cut off under its writer",
        outside=(at_step(8, lose_record(empty)),),
        reports=(Report(UNKNOWN, ("SIGBUS",), within_s=AT_ONCE_S),),
    ),
    Case(
        "30d",
        "progress record frozen: a copy that nobody writes",
        outside=(at_step(8, lose_record(freeze)),),
        reports=(Report(None),),
        short_s={"fetch_s": 2.0, "step_s": 2.0, "save_s": 2.0},
        lost_steps=None,
    ),
    Case(
        "30e",
        "progress record deleted, then the trainer hangs: noticed after the largest allowance of all phases",
        ("lock @ step 12",),
        outside=(at_step(8, lose_record(Path.unlink)),),
        reports=(Report(UNKNOWN, ("lock (",), within_s=LARGEST_S + SLACK_S),),
        short_s={field.name: LARGEST_S for field in fields(Floors)},
        supervision={"factor": 1.0},
    ),
    Case(
        "41a",
        "learning rate and epochs changed between attempts",
        outside=(at_step(8, edit(model__lr0=0.02, trainer__max_epochs=3), to_trainer(signal.SIGKILL)),),
        reports=(KILLED,),
        log=(
            "changed since the checkpoint: model.lr0 was 0.01, now 0.02 (used)",
            "changed since the checkpoint: trainer.max_epochs was 2, now 3 (used)",
        ),
        exact=False,
        check=steps_trained(48),  # type: ignore[arg-type]
    ),
    Case(
        "41b",
        "number of workers changed between attempts",
        outside=(at_step(8, edit(data__loader__num_workers=2), to_trainer(signal.SIGKILL)),),
        reports=(KILLED,),
        log=("changed since the checkpoint: data.loader.num_workers was 0, now 2 (used)",),
    ),
    killed_and_changed(
        "41c",
        "other training data between attempts",
        "the checkpoint was made on other training data",
        codes=(2,),
        data__root="{root}/other-data",
    ),
    killed_and_changed(
        "41d",
        "batch size changed within an epoch: the rest of it in batches of the new size",
        "changed since the checkpoint: data.batch_size was 4, now 8 (used)",
        data__batch_size=8,
    ),
)
