"""The race under faults: schedule, record, accounting, faults from outside, and a rehearsal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import fault_race
import pytest
import torch
from race import chart, contest, schedule, systems, unusable
from race.account import Entry, Outcome, Record
from race.hook import NAN_VARIABLE, RECORD_VARIABLE, Hook

from tests.conftest import REPOSITORY

SCRIPTS = REPOSITORY / "scripts"


def outcome(*steps: int, digest: str = "a", finished_s: float | None = 10.0, interventions: int = 0) -> Outcome:
    return Outcome(finished_s, digest, [(float(step), step, True) for step in steps], [], [1.0] * interventions)


def wait_for_state(process: int, state: str) -> str:
    """Return the state of a process, as soon as it is `state` or after some seconds."""
    end_s = time.monotonic() + 10
    while True:
        actual = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if actual == state or time.monotonic() > end_s:
            return actual
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(5))
def test_schedule_has_one_fault_of_each_kind_where_it_has_an_effect(seed: int) -> None:
    faults = schedule.draw_schedule(schedule.KINDS, 120, seed)
    assert faults == schedule.draw_schedule(schedule.KINDS, 120, seed)
    assert {fault.kind for fault in faults} == set(get_args(schedule.Kind))
    assert len(faults) == 5
    steps = [fault.step for fault in faults]
    assert steps == sorted(steps)
    assert steps[0] > systems.STEPS_PER_EPOCH
    assert steps[-1] < 120
    assert all(2 <= step % systems.STEPS_PER_EPOCH <= 5 for step in steps)


def test_short_trainings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--steps must be >= 60 for 5 faults, got 50"):
        schedule.draw_schedule(schedule.KINDS, 50, 0)


def test_outcome_counts_repeated_and_nonfinite_steps() -> None:
    # Killed after step 4, resumed after step 2; step 5 is NaN and step 6 is not; then the final weights.
    done = [1, 2, 3, 4, 3, 4, 5, 6]
    entries = [Entry(100.0 + number, 7, step=step, finite=step != 5) for number, step in enumerate(done)]
    entries.insert(6, Entry(105.5, 7, fault="nan"))
    actual = Outcome.of([*entries, Entry(110.0, 7, digest="d")], 90.0, [(103.5, "kill")], [104.0])
    assert actual.lost == 3
    assert (actual.finished_s, actual.digest) == (20.0, "d")
    assert actual.faults == [(13.5, "kill"), (15.5, "nan")]
    assert actual.interventions == [14.0]
    assert Outcome.of([*entries, Entry(110.0, 7, digest="d", finite=False)], 90.0, [], []).finished_s is None


def test_time_to_recover_is_the_longest_time_without_progress_after_a_fault() -> None:
    """A batch that was loaded before follows the hang at 11.5 s; step 4 is NaN."""
    steps = [(10.0, 1, True), (11.0, 2, True), (12.0, 3, True), (31.0, 2, True), (33.0, 3, True), (34.0, 4, True)]
    steps += [(38.0, 5, False), (40.0, 6, True)]
    actual = Outcome(50.0, "d", steps, [(11.5, "hang"), (34.5, "nan")])
    assert actual.recovery_s == [22.0, 5.5]


def test_hook_makes_one_step_nan_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORD_VARIABLE, str(tmp_path / "record.jsonl"))
    monkeypatch.setenv(NAN_VARIABLE, "3")
    hook, images = Hook(), torch.ones(1, 3, 2, 2)
    assert hook.images(images, 2).isfinite().all()
    assert hook.images(images, 3).isnan().all()
    assert Hook().images(images, 3).isfinite().all()  # after a restart
    hook.step(3, torch.tensor([1.0, float("nan")]))
    hook.finish({"b": torch.zeros(2), "a": torch.ones(1)})
    Hook().finish({"a": torch.ones(1), "b": torch.zeros(2)})
    fault, step, *final = Record(tmp_path / "record.jsonl").update()
    assert fault.fault == "nan"
    assert step.step == 3
    assert not step.finite
    assert final[0].digest == final[1].digest
    assert final[0].finite


def test_person_deletes_damaged_and_nonfinite_checkpoints_only(tmp_path: Path) -> None:
    torch.save({"weights": [torch.zeros(2)], "step": 1}, tmp_path / "good.pt")
    torch.save({"state": {"a": torch.tensor(float("nan"))}}, tmp_path / "nan.ckpt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:100])
    (tmp_path / "last.ckpt").symlink_to("nan.ckpt")
    (tmp_path / "notes.txt").write_text("")
    unusable.main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"good.pt", "notes.txt"}


def test_table_compares_each_system_with_itself() -> None:
    undisturbed, slower = outcome(1, 2), outcome(1, 2, finished_s=14.0)
    equal = chart.Result(undisturbed, outcome(1, 2, 2, finished_s=24.0), slower)
    other = chart.Result(undisturbed, outcome(1, 2, digest="b", interventions=1), undisturbed)
    stopped = chart.Result(undisturbed, outcome(1, digest="", finished_s=None), undisturbed)
    random = chart.Result(undisturbed, undisturbed, outcome(1, 2, digest="c"))
    results = {"ours": [equal], "lightning": [equal, other], "torchrun": [stopped], "ultralytics": [random]}
    rows = chart.table(results, {"nvrx": "is not installed"})
    cells = [[cell.strip() for cell in row.split("|")[2:-1]] for row in rows.splitlines()[2:]]
    assert cells[0] == ["12 (10 to 14)", "24", "2.4", "-", "-", "1", "yes", "0"]
    assert cells[1] == [
        "10 (10 to 14)",
        "17 (10 to 24)",
        "1.7 (1.0 to 2.4)",
        "-",
        "-",
        "0.5 (0 to 1)",
        "yes (1), no (1)",
        "0.5 (0 to 1)",
    ]
    assert cells[2][1:3] == ["1 of 1 not finished", "1 of 1 not finished"]
    assert cells[3][6] == "no (two undisturbed runs differ)"
    assert cells[4] == ["is not installed", *["-"] * 7]


def test_kill_in_save_waits_for_a_checkpoint_that_changes(tmp_path: Path) -> None:
    training = systems.Training(str(tmp_path / "run"), "", "", 30, 0, 32)
    torchrun_contest = contest.Contest(systems.SYSTEMS["torchrun"], training, tmp_path, [], contest.Rules())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "last.ckpt").write_text("old")
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not torchrun_contest._kill_in_save(process.pid)
        (tmp_path / "run" / "log.txt").write_text("no checkpoint")
        assert not torchrun_contest._kill_in_save(process.pid)
        (tmp_path / "run" / ".writing-last.ckpt.part").touch()
        assert torchrun_contest._kill_in_save(process.pid)
        assert process.wait(10) == -9


def test_loader_workers_are_stopped_and_the_trainer_is_not() -> None:
    code = (
        "import multiprocessing, time; fork = multiprocessing.get_context('fork');"
        "child = fork.Process(target=time.sleep, args=(60,)); child.start(); print(child.pid, flush=True); child.join()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        assert not contest.stop_workers(child)  # it has no workers
        assert contest.stop_workers(trainer.pid)
        state = wait_for_state(child, "T")
        trainer_state = wait_for_state(trainer.pid, "S")
        os.kill(child, signal.SIGKILL)
    assert (state, trainer_state) == ("T", "S")


def test_page_gets_the_table_once(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "race.png"
    picture.write_bytes(b"chart")
    page.write_text("# Page\n\n## The race\n\ntext\n\n| system |\n\nend\n")
    for value in ("1", "2"):
        fault_race.write_page(page, f"| system | time |\n| --- | --- |\n| a | {value} |", picture)
    assert page.read_text().endswith("text\n\n| system | time |\n| --- | --- |\n| a | 2 |\n\nend\n")
    assert (tmp_path / "fault_race.png").read_bytes() == b"chart"


@pytest.mark.whole_run
@pytest.mark.timeout(600)
def test_rehearsal(tmp_path: Path) -> None:
    """torchrun resumes from its snapshot after a SIGKILL, with equal weights."""
    options = ["--quick", "--steps", "20", "--systems", "torchrun", "--faults", "kill", "--work", str(tmp_path)]
    command = [sys.executable, str(SCRIPTS / "fault_race.py"), *options]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True)
    runs = json.loads((tmp_path / "0" / "results.json").read_text())["torchrun"]
    undisturbed, raced, repeated = (Outcome.from_json(runs[kind]) for kind in ("undisturbed", "raced", "repeated"))
    assert [kind for _, kind in raced.faults] == ["kill"]
    assert undisturbed.digest
    assert raced.digest == undisturbed.digest == repeated.digest
    assert undisturbed.lost == 0
    assert 2 <= raced.lost <= 6
    assert (tmp_path / "race.png").stat().st_size > 1000
