"""One plan for all ranks: the first rank plans the run, and all other ranks receive the plan.

The ranks of torchrun receive the plan through the store of their rendezvous, and each compares its folder, versions and
options with those of the first rank. The processes that Lightning's launcher starts on this machine receive the plan in
an environment variable.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import yolo_lightning
from yolo_lightning.checkpoints import run_folder
from yolo_lightning.checkpoints.resume import NOT_COMPARED
from yolo_lightning.checkpoints.run_folder import LaunchRecord
from yolo_lightning.commands.run_plan import Run
from yolo_lightning.errors import UserError
from yolo_lightning.supervision.run_lock import run_lock
from yolo_lightning.utils.addresses import SECRET
from yolo_lightning.utils.distributed import launch_id, machines_of_launch
from yolo_lightning.utils.rank_store import RankStore

PLAN_VARIABLE = "YOLO_LIGHTNING_PLAN"
"""Environment variable with the plan of this process for the processes that Lightning's launcher starts."""

SHARED_WITHIN_S = 90.0
"""Longest delay until a network file system shows a new file to other hosts; NFS keeps names for 60 s."""

OPTIONS_OF_HOST = {"data.root", "data.format", "data.storage.index_root", "data.loader.num_workers"}
"""Options that may differ between hosts, such as for copies of the data. The data module compares the annotations."""

MACHINES = "number of machines (torchrun does not count a machine whose clock differs by more than 15 s)"
PACKAGES = ("torch", "lightning", "ultralytics", "torchvision")


def plan_of_all_ranks(ranks: RankStore | None, options: Mapping[str, Any], plan: Callable[[], Run]) -> Run:
    """Return the plan of the first rank, after a comparison of all ranks.

    Args:
        ranks: Connection of the ranks that torchrun has started; None for a process without torchrun.
        options: All options by full name, parsed.
        plan: Plans the run and prepares its folder; only the first rank calls this function.

    Raises:
        UserError: In all ranks, if the ranks differ.
    """
    if ranks is None:
        return _plan_of_this_machine(plan)
    launch = LaunchRecord(launch_id() or "", uuid4().hex)
    decision = ranks.decide("plan", lambda: _first_plan(plan, launch))
    run = Run.from_json(decision["run"])
    launch = LaunchRecord(**decision["launch"])
    if not run.is_finished:
        ranks.compare(facts(run, launch, options))
    return run


def _plan_of_this_machine(plan: Callable[[], Run]) -> Run:
    is_further_process = os.environ.get("LOCAL_RANK", "0") != "0"
    if is_further_process and PLAN_VARIABLE in os.environ:
        return Run.from_json(json.loads(os.environ[PLAN_VARIABLE]))
    run = plan()
    os.environ[PLAN_VARIABLE] = json.dumps(asdict(run), default=str)
    return run


def _first_plan(plan: Callable[[], Run], launch: LaunchRecord) -> dict[str, Any]:
    """Return the plan with absolute paths, for hosts with other working folders, and record the start in a fit."""
    run = plan()
    checkpoint = None if run.checkpoint is None else run.checkpoint.absolute()
    run = replace(run, folder=run.folder.absolute(), checkpoint=checkpoint)
    if run.is_fit and not run.is_finished:
        # The record of a run in use remains. Another launch that starts before the training locks the folder chooses
        # another one.
        with run_lock(run.folder, is_starting=True):
            run_folder.note_launch(run.folder, launch)
    return {"run": asdict(run), "launch": asdict(launch)}


def facts(run: Run, launch: LaunchRecord, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal on all ranks: machines, access to the run folder, versions, options."""
    compared = {
        f"option {name}": value
        for name, value in options.items()
        if name not in NOT_COMPARED | OPTIONS_OF_HOST and not SECRET.search(name)
    }
    return {
        MACHINES: machines_of_launch(),
        "run folder": _access(run, launch),
        "yolo_lightning": f"{yolo_lightning.__version__}, sources {digest_of_sources()}",
        **{name: version(name) for name in PACKAGES},
        **compared,
    }


def _access(run: Run, launch: LaunchRecord) -> str:
    """Return whether this rank can use the run folder of the first rank."""
    if run.is_fit and not run_folder.has_launch(run.folder, launch, SHARED_WITHIN_S):
        return f"{run.folder} is not shared with the first rank"
    try:
        run_folder.prepare(run.folder)
    except (OSError, UserError) as error:
        return str(error)
    return f"{run.folder} is shared"


def digest_of_sources() -> str:
    """Return a hash of the source files of this package: two checkouts of one version can differ."""
    root = Path(yolo_lightning.__file__).parent
    digest = sha256()
    for folder in (root, root / "callbacks"):  # a symbolic link in a checkout
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
