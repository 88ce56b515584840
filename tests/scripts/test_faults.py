"""Fault injection into real training runs, and tests of the functions that judge the runs."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import matrix, traces
from faults.actions import at_step, edit
from faults.hangs import KINDS, InsideFault, InsideFaults, Place
from faults.judge import FinalState, differences, restarts
from faults.operators import FaultyOperators
from faults.random_faults import long_case, random_cases
from faults.rows import CASES, KILL, chosen
from faults.run import Beat, OutputLine, Run

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.fallback_levels import AS_CONFIGURED, FallbackState
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.utils.run_files import STATE_FILE

SCRIPT = REPOSITORY / "scripts" / "inject_faults.py"

GROUPS = {
    "loader": "1,2,3,4,5,6,7,8,9,10,11,26,38,40",
    "trainer": "12,13,14,15,16,17,20,27,28,34,35,36,43,44,45,46",
    "environment": "47",
    "files": "18,19,21,22,23,30,37,41",
    "supervisor": "24,25,29,31,32,33,39",
    "random": "42",
}


def inject(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the verdicts of the script."""
    command = [sys.executable, str(SCRIPT), "--json", "--work", str(folder), *options]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == int(any(verdict["wrong"] for verdict in verdicts))
    return verdicts


@pytest.mark.parametrize("name", [case.name for case in CASES if case.environment])
def test_environment_of_a_case_has_no_placeholders(name: str, tmp_path: Path) -> None:
    (case,) = chosen(name)
    run = Run(case, tmp_path)
    try:
        environment = run.environment()
        assert environment["TMPDIR"] == str(run.temporary)
        assert run.temporary.is_relative_to("/dev/shm") == ("TMPDIR" in case.environment)
        assert not [value for value in environment.values() if "{" in value]
    finally:
        shutil.rmtree(run.temporary)


@pytest.mark.whole_run
@pytest.mark.timeout(900)
def test_run_recovers_from_three_kinds_of_faults_and_ends_bit_for_bit_equal(tmp_path: Path) -> None:
    (verdict,) = inject(tmp_path, "--rows", "quick")
    assert verdict["wrong"] == []
    assert verdict["leftovers"] == []
    assert len(verdict["lost_each"]) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole_run
@pytest.mark.timeout(900)
@pytest.mark.parametrize("row", ["21e", "29a", "40c"], ids=["clock set back", "suspension", "group killed"])
def test_run_recovers_from_clock_changes_suspension_and_a_killed_group(row: str, tmp_path: Path) -> None:
    (verdict,) = inject(tmp_path, "--rows", row)
    assert verdict["wrong"] == []
    assert verdict["leftovers"] == []


@pytest.mark.whole_run
@pytest.mark.timeout(900)
def test_run_that_changed_level_equals_a_run_with_the_lower_level_from_that_step_on(tmp_path: Path) -> None:
    matrix.prepare(tmp_path)
    (falls,) = chosen("44b")
    change = at_step(6, edit(model__convolution__backend="gemm"), KILL)
    runs = [
        Run(case, tmp_path) for case in (falls, replace(falls, name="44z", prepare=lambda run: None, outside=(change,)))
    ]
    for run in runs:
        run.carry_out()
        assert run.codes == [0], run.output()
    assert [FallbackState.read(run.run_folder / STATE_FILE).computation.name for run in runs] == ["gemm", AS_CONFIGURED]
    resumed = [[line.resumed_step for line in run.lines if line.resumed_step is not None] for run in runs]
    assert resumed == [[5], [5]]
    assert differences(*(FinalState.read(run.run_folder) for run in runs)) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("rows", GROUPS.values(), ids=GROUPS.keys())
def test_matrix(rows: str, tmp_path: Path) -> None:
    verdicts = inject(tmp_path, "--rows", rows)
    assert {verdict["name"]: verdict["wrong"] for verdict in verdicts if verdict["wrong"]} == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_kills_at_random_moments_of_one_run(tmp_path: Path) -> None:
    (verdict,) = inject(tmp_path, "--kills", "20")
    assert verdict["wrong"] == []
    assert len(verdict["lost_each"]) == 20


def test_groups_contain_every_row() -> None:
    rows = {int(row) for group in GROUPS.values() for row in group.split(",")}
    assert rows == {case.row for case in CASES} == set(range(1, 48))


def test_unknown_rows_raise_value_error() -> None:
    with pytest.raises(ValueError, match=r"--rows must be names of 1, 2, 3.*, got 99"):
        chosen("1,99")


def final_state() -> FinalState:
    rows = [{"epoch": "0", "step": str(step), "train/loss": "1"} for step in (1, 2, 2)]
    return FinalState({"last.weight": torch.zeros(3), "best.weight": torch.ones(3)}, rows, 2)


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (replace(final_state(), steps=3), "3 steps trained instead of 2"),
        (replace(final_state(), tensors={"last.weight": torch.zeros(3)}), "other tensors"),
        (
            replace(final_state(), tensors={"last.weight": torch.tensor([0, 0, 1e-38]), "best.weight": torch.ones(3)}),
            "1 of 2 tensors differ, among them last.weight",
        ),
        (
            replace(final_state(), tensors=dict.fromkeys(final_state().tensors, torch.full((3,), torch.nan))),
            "not finite",
        ),
        (replace(final_state(), rows=final_state().rows[:2]), "metrics.csv: doubled rows"),
        (replace(final_state(), rows=[*final_state().rows, final_state().rows[0]]), "doubled rows [('0', '1')]"),
        (
            replace(final_state(), rows=[final_state().rows[0] | {"train/loss": "2"}, *final_state().rows[1:]]),
            "other values at the steps ['1']",
        ),
    ],
)
def test_differences_of_final_states_are_found(actual: FinalState, words: str) -> None:
    assert any(words in wrong for wrong in differences(actual, final_state()))


def test_equal_final_states_have_no_differences() -> None:
    assert differences(final_state(), final_state()) == []


def test_forgotten_processes_and_files_are_found(tmp_path: Path) -> None:
    before = traces.shared_memory()
    forgotten = Path("/dev/shm") / f"sem.mp-{os.getpid()}"
    temporary, run = tmp_path / "tmp", tmp_path / "run"
    temporary.mkdir()
    run.mkdir()
    (run / ".writing-1-last.ckpt.part").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {"FAULTS_TEST": str(tmp_path)}
    )
    try:
        forgotten.touch()
        assert forgotten.name in traces.orphaned_shared_memory(before)
        assert traces.marked("FAULTS_TEST", str(tmp_path)) == [process.pid]
        assert traces.temporary_files(run, temporary) == [str(run / ".writing-1-last.ckpt.part")]
    finally:
        forgotten.unlink()
        process.kill()
        process.wait()
    assert traces.marked("FAULTS_TEST", str(tmp_path)) == []


def test_lost_steps_and_recovery_time_of_a_restart() -> None:
    beats = [
        *(Beat(1.0, 10, Phase.STEP, 7), Beat(2.0, 10, Phase.FETCH, 8)),
        *(Beat(8.0, 11, Phase.IMPORT, 0), Beat(9.0, 11, Phase.FIRST_BATCH, 5), Beat(9.5, 11, Phase.FETCH, 6)),
    ]
    lines = [
        OutputLine(0.5, "run folder: run"),
        OutputLine(5.0, "supervisor: 2026-01-01T10:00:00+0000 restart in 0 s: attempt 1 of 3"),
        OutputLine(8.5, "run folder: run, checkpoint: run/checkpoints/step-000000005.ckpt", 5),
    ]
    assert restarts(beats, lines) == ([3], [4.5])


def test_fault_happens_once_in_all_attempts_or_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for kind in ("sleep", "kill"):
        monkeypatch.setitem(KINDS, kind, partial(called.append, kind))
    texts = ("sleep @ validation frame 3", "kill @ step 7 always")
    faults = InsideFaults(tuple(map(InsideFault.parse, texts)), tmp_path)
    for number in (2, 3, 3):
        faults.call(Place.VALIDATION_FRAME, number)
    assert called == ["sleep"]
    for _ in range(2):
        faults.call(Place.STEP, 7)
    assert called == ["sleep", "kill", "kill"]
    assert len((tmp_path / "fired.jsonl").read_text().splitlines()) == 3
    with pytest.raises(ValueError, match=r"fault kind must be one of .*, got 'yawn'"):
        InsideFault.parse("yawn @ step 7")


def results(mode: FaultyOperators, calls: int) -> list[float]:
    """Return the results of several additions of 1 and 1."""
    with mode:
        return [float(torch.ones(()).add(1)) for _ in range(calls)]


def test_single_call_of_an_operator_is_spoiled_in_one_attempt(tmp_path: Path) -> None:
    assert results(FaultyOperators("wrong", "add", 1, 0, tmp_path / "fault"), 4) == [2, 3, 2, 2]
    assert results(FaultyOperators("wrong", "add", 1, 0, tmp_path / "fault"), 3) == [2, 2, 2]


def test_all_later_calls_of_an_operator_are_spoiled_in_some_attempts(tmp_path: Path) -> None:
    for _ in range(2):
        assert results(FaultyOperators("wrong", "add", 1, 2, tmp_path / "fault"), 3) == [2, 3, 3]
    assert results(FaultyOperators("wrong", "add", 1, 2, tmp_path / "fault"), 3) == [2, 2, 2]
    assert len((tmp_path / "fired.jsonl").read_text().splitlines()) == 2


def test_operator_with_another_name_or_dtype_is_not_spoiled(tmp_path: Path) -> None:
    assert results(FaultyOperators("a bug", "convolution", 0, 1, tmp_path / "fault"), 2) == [2, 2]
    assert results(FaultyOperators("wrong", "add", 0, 1, tmp_path / "fault", "bfloat16"), 2) == [2, 2]
    assert results(FaultyOperators("wrong", "add", 0, 1, tmp_path / "fault", "float32"), 2) == [3, 3]


def test_random_case_depends_on_its_seed_and_number_alone() -> None:
    (case,) = random_cases(1, 0, first=51)
    assert case.fault == random_cases(52, 0)[51].fault == "SIGKILL to the supervisor at step 2"
    assert case.codes == (-9, 0)
    assert len({case.fault for case in random_cases(20, 1)}) > 10


def test_long_run_has_faults_at_equal_distances() -> None:
    case = long_case(30, 10, 0)
    assert len(case.outside) == 10
    assert [f"after {seconds} s" in case.fault for seconds in (164, 327, 1636)] == [True] * 3
    assert case.codes == (0,)


def test_page_has_a_row_for_every_case() -> None:
    page, _, _ = (REPOSITORY / "docs" / "faults.md").read_text().partition(matrix.BY_HAND)
    rows = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ")][2:]
    assert [(name.removeprefix("| "), fault) for name, fault in rows] == [(case.name, case.fault) for case in CASES]


def test_page_keeps_what_is_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text(f"old\n{matrix.BY_HAND}\n\nby hand\n")
    matrix.write_page(page, [], 60.0)
    text = page.read_text()
    assert text.endswith("## Random faults\n\nby hand\n")
    assert "old" not in text
    matrix.write_page(page, [], 60.0)
    assert page.read_text() == text
