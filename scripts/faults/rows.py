"""The whole matrix, in order."""

import signal

from faults import rows_files, rows_loader, rows_supervisor, rows_trainer
from faults.case import AT_ONCE_S, Case, Report
from faults.outside import at_step, to_trainer, to_worker
from faults.soak import RANDOM_CASES
from yolo_lightning.supervision.classify import StallClass

CASES: tuple[Case, ...] = tuple(
    sorted(
        (*rows_loader.CASES, *rows_trainer.CASES, *rows_files.CASES, *rows_supervisor.CASES, *RANDOM_CASES),
        key=lambda case: (case.row, case.name),
    )
)


QUICK = Case(
    "quick",
    "rows 4, 17 and 12 in one run: worker stopped, trainer killed, trainer in a C call",
    ("c_call @ step 19",),
    outside=(
        at_step(3, to_worker(signal.SIGSTOP)),
        at_step(12, to_trainer(signal.SIGKILL)),
    ),
    reports=(
        Report(StallClass.LOADER_STALL, ("stopped (T)", "owes it")),
        Report(StallClass.UNKNOWN, ("SIGKILL",), within_s=AT_ONCE_S),
        Report(StallClass.UNKNOWN, ("c_call (", "state S"), "step"),
    ),
    short_s={"fetch_s": 3.0, "step_s": 2.0, "save_s": 3.0},
    workers=1,
    rung=1,
    typed=True,
)
"""The least that shows that a stall and a death are noticed, named, and survived; only where asked for."""


def chosen(names: str) -> tuple[Case, ...]:
    """Those whose row or name stands in a list such as `1,2,7b`; all for an empty one.

    Raises:
        ValueError: If a name is unknown.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted == [QUICK.name]:
        return (QUICK,)
    known = {case.name for case in CASES} | {str(case.row) for case in CASES}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        listed = ", ".join(case.name for case in CASES)
        raise ValueError(f"rows are {', '.join(unknown)}, allowed are {listed} and {QUICK.name}")
    return tuple(case for case in CASES if not wanted or case.name in wanted or str(case.row) in wanted)
