"""Watch over an arm of the hang study, with synthetic steps."""

import csv
import itertools
import os
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from hang_experiment import watch as watch_module
from hang_experiment.arm import STEP
from hang_experiment.conclusion import End
from hang_experiment.watch import ArmWatch, StudyLimits, percentiles, read_steps, vmstat, worker_starts

from yolo_lightning.utils import sensors

QUICK = StudyLimits(interval_s=0.1, start_s=1.0, stall_s=0.3, poll_s=0.01)


def add(path: Path, *steps: tuple[float, float]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(STEP.pack(*step) for step in steps))


def watch(folder: Path) -> tuple[ArmWatch, Path]:
    table = (folder / "arm.csv").open("w", newline="")
    return ArmWatch(os.getpid(), folder / "steps", table, QUICK), folder / "steps"


def test_incomplete_steps_are_read_later(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    assert len(read_steps(path)) == 0
    add(path, (0.1, 1), (0.2, 1))
    with path.open("ab") as file:
        file.write(STEP.pack(0.3, 2)[:5])
    assert read_steps(path)["seconds"].tolist() == [0.1, 0.2]
    with path.open("ab") as file:
        file.write(STEP.pack(0.3, 2)[5:])
    assert read_steps(path)["seconds"].tolist() == [0.1, 0.2, 0.3]
    assert worker_starts(read_steps(path)) == 2


def test_percentiles_of_many_one_and_none() -> None:
    assert percentiles([one / 1000 for one in range(1, 102)]) == (51.0, 100.0)
    assert percentiles([0.25]) == (250.0, 250.0)
    assert percentiles([]) == (None, None)


def test_counters_of_events_that_move_pages_are_read(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 7\ncompact_stall 5\nthp_collapse_alloc 3\npswpin 1\nnuma_pte_updates 2\n")
    found = {"compact_stall": 5, "thp_collapse_alloc": 3, "pswpin": 1, "numa_pte_updates": 2}
    assert vmstat(tmp_path / "vmstat") == found


def test_an_arm_without_further_steps_hangs_and_reports_stopped_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    # 50 s before the watch; during the watch, queues are stopped all the time.
    monkeypatch.setattr(sensors, "evicted_ms", lambda pid: 50_000 + int(1000 * (time.monotonic() - began_s)))
    one, steps = watch(tmp_path)
    add(steps, (0.1, 1), (0.1, 1))
    assert one.until_end(lambda: None) is End.HANG
    result = one.result("fork-pinned", End.HANG, "")
    assert (result.steps, result.worker_starts) == (2, 1)
    assert 0.3 <= result.stalled_s < 10
    assert result.evicted_ms is not None
    assert result.stall_evicted_ms is not None
    assert result.evicted_ms > 50_000
    assert 200 <= result.stall_evicted_ms < 50_000


def test_an_arm_that_never_begins_hangs_later(tmp_path: Path) -> None:
    one, _ = watch(tmp_path)
    began_s = time.monotonic()
    assert one.until_end(lambda: None) is End.HANG
    assert time.monotonic() - began_s >= QUICK.start_s


def test_an_arm_that_makes_steps_does_not_hang(tmp_path: Path) -> None:
    one, steps = watch(tmp_path)
    began_s = time.monotonic()

    def poll() -> int | None:
        add(steps, (0.01, 1))
        return 0 if time.monotonic() - began_s > 3 * QUICK.stall_s else None

    assert one.until_end(poll) is End.COMPLETE
    rows = list(csv.DictReader((tmp_path / "arm.csv").open()))
    assert len(rows) >= 3
    assert [int(row["steps"]) for row in rows] == sorted(int(row["steps"]) for row in rows)
    assert float(rows[-1]["step_p50_ms"]) == 10.0


@pytest.mark.parametrize(("code", "steps", "end"), [(0, 1, End.COMPLETE), (0, 0, End.CRASH), (-11, 1, End.CRASH)])
def test_an_arm_that_has_ended(tmp_path: Path, code: int, steps: int, end: End) -> None:
    one, path = watch(tmp_path)
    add(path, *[(0.1, 1)] * steps)
    assert one.until_end(lambda: code) is end


def test_new_kernel_lines_of_the_amd_driver_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = itertools.chain([("old amdgpu line",)], itertools.repeat(("old amdgpu line", "kfd: evicting", "nvrm: xid")))
    current = {"lines": next(logs)}
    monkeypatch.setattr(watch_module, "kernel_lines", lambda: current["lines"])
    one, _ = watch(tmp_path)
    current["lines"] = next(logs)
    one.sample()
    one.sample()
    assert one.kernel_lines == ["kfd: evicting"]
