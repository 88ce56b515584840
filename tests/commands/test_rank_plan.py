"""All ranks follow the plan of the first rank, in the run folder that the first rank has prepared."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from yolo_lightning.checkpoints import run_folder
from yolo_lightning.commands import rank_plan
from yolo_lightning.commands.rank_plan import PLAN_VARIABLE, plan_of_all_ranks
from yolo_lightning.commands.run_plan import Run
from yolo_lightning.supervision.run_lock import read_holder
from yolo_lightning.utils.rank_store import RankStore
from yolo_lightning.utils.run_files import LOCK_FILE

OPTIONS = {"model.variant": "yolov8n", "data.root": "data", "supervision.notify.token": "a"}


def outcomes(plan: Callable[[], Run], options_of_second: dict[str, Any]) -> list[Run | str]:
    """Return the plan of each of two ranks, which are threads, or its error."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))

    def of_rank(rank: int) -> Run | str:
        try:
            return plan_of_all_ranks(RankStore(store, rank, 2), options_of_second if rank else OPTIONS, plan)
        except Exception as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(of_rank, range(2)))


@pytest.fixture
def fit(tmp_path: Path) -> Callable[[], Run]:
    """Plans a fit in a new run folder."""

    def plan() -> Run:
        run_folder.prepare(tmp_path / "run")
        return Run(tmp_path / "run", is_fit=True, options={"data.limits.quarantine": ["id=a"]}, lines=("line",))

    return plan


def test_second_rank_follows_the_plan_of_the_first_rank(fit: Callable[[], Run], tmp_path: Path) -> None:
    of_host = {**OPTIONS, "data.root": "elsewhere", "supervision.notify.token": "b"}
    assert outcomes(fit, of_host) == [fit(), fit()]
    assert run_folder.read_launch(tmp_path / "run") is not None


def test_planned_run_is_reserved_for_the_launch(fit: Callable[[], Run], tmp_path: Path) -> None:
    """Another launch, which starts while this one opens its data, must not record itself in the folder."""
    outcomes(fit, OPTIONS)
    holder = read_holder(tmp_path / "run" / LOCK_FILE)
    assert holder is not None
    assert holder.is_own
    assert holder.is_starting


def test_other_option_of_the_second_rank_ends_both(fit: Callable[[], Run]) -> None:
    first, second = outcomes(fit, {**OPTIONS, "model.variant": "yolov8s"})
    assert first == second
    assert "the ranks differ in option model.variant: 'yolov8s' on rank 1 " in str(first)


def test_run_folder_that_is_not_shared_ends_both_ranks(
    fit: Callable[[], Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rank_plan, "SHARED_WITHIN_S", 0.2)
    has_launch = run_folder.has_launch
    elsewhere = iter([tmp_path / "run", tmp_path / "elsewhere"])
    monkeypatch.setattr(run_folder, "has_launch", lambda folder, *rest: has_launch(next(elsewhere), *rest))
    first, second = outcomes(fit, OPTIONS)
    assert first == second
    assert "is not shared with the first rank" in str(first)


def test_clocks_that_differ_end_both_ranks(fit: Callable[[], Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun then reports another number of machines to the processes of each machine."""
    machines = iter([2, 1])
    monkeypatch.setattr(rank_plan, "machines_of_launch", lambda: next(machines))
    first, second = outcomes(fit, OPTIONS)
    assert first == second
    assert "the ranks differ in number of machines (torchrun does not count a machine whose clock differs" in str(first)


def test_finished_run_ends_all_ranks_without_a_comparison(tmp_path: Path) -> None:
    finished = Run(tmp_path / "run", is_finished=True)
    assert outcomes(lambda: finished, {}) == [finished, finished]
    assert not (tmp_path / "run").exists()


def test_processes_of_lightnings_launcher_receive_the_plan_of_their_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv(PLAN_VARIABLE, json.dumps(asdict(Run(tmp_path / "of an earlier fit")), default=str))
    run = Run(tmp_path / "run", is_fit=True)
    assert plan_of_all_ranks(None, OPTIONS, lambda: run) == run
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert plan_of_all_ranks(None, OPTIONS, pytest.fail) == run
