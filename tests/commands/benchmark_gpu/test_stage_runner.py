"""Budget, resume, and how the end of a child process becomes the record of a stage; no child process is started."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from yolo_lightning.commands.benchmark_gpu import command
from yolo_lightning.commands.benchmark_gpu.command import benchmark_gpu, write_results
from yolo_lightning.commands.benchmark_gpu.stage_records import (
    DEFAULT_BUDGET_S,
    LIMITS,
    Stage,
    StageRecord,
    StageState,
    partial_path,
    read_record_of,
    record_path,
    time_limit_s,
)
from yolo_lightning.commands.benchmark_gpu.stage_runner import (
    PROGRESS,
    RunSettings,
    check_folder,
    record_of_end,
    run_stages,
)
from yolo_lightning.supervision.child_process import Ended
from yolo_lightning.utils.exit_codes import INTERRUPTED

SETTINGS = RunSettings("cpu", True)
THREE = [Stage.MACHINE, Stage.CORRECTNESS, Stage.SPEED]


class Machine:
    """Stands for the child processes: each takes a given time, and writes a given result before it ends."""

    def __init__(self, out: Path, seconds: float = 10.0) -> None:
        self.out, self.seconds, self.now_s = out, seconds, 0.0
        self.started: list[tuple[Stage, float]] = []
        self.ends: dict[Stage, Callable[[], Ended]] = {}
        self.results: dict[Stage, Any] = {}
        check_folder(out, SETTINGS)

    def launch(self, stage: Stage, limit_s: float) -> Ended:
        self.started.append((stage, limit_s))
        self.now_s += self.seconds
        partial_path(self.out, stage).write_text(json.dumps(self.results.get(stage, {"passed": True})))
        return self.ends.get(stage, lambda: Ended(0, self.seconds))()

    def run(self, stages: list[Stage] = THREE, budget_s: float = DEFAULT_BUDGET_S) -> list[StageRecord]:
        return run_stages(self.out, SETTINGS, stages, budget_s, self.launch, lambda: self.now_s)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def states(records: list[StageRecord]) -> list[StageState]:
    return [record.state for record in records]


def test_second_call_skips_finished_stages_and_repeats_the_others(machine: Machine) -> None:
    machine.results[Stage.CORRECTNESS] = {"passed": False, "reason": "rows is wrong"}
    machine.ends[Stage.SPEED] = lambda: Ended(-11, 1.0, err=("stage: native", "Segmentation fault"))
    assert states(machine.run()) == [StageState.PASSED, StageState.FAILED, StageState.CRASHED]
    machine.started.clear()
    del machine.ends[Stage.SPEED]
    assert states(machine.run()) == [StageState.PASSED, StageState.FAILED, StageState.PASSED]
    assert [stage for stage, _ in machine.started] == [Stage.SPEED]


def test_record_is_written_before_the_next_stage_starts(machine: Machine) -> None:
    seen = []
    machine.ends[Stage.CORRECTNESS] = lambda: (seen.append(read_record_of(machine.out, Stage.MACHINE)), Ended(0, 1.0))[
        1
    ]
    machine.run()
    assert seen[0] is not None
    assert seen[0].state is StageState.PASSED
    assert not partial_path(machine.out, Stage.MACHINE).exists()


def test_damaged_record_is_measured_again(machine: Machine) -> None:
    machine.run([Stage.MACHINE])
    record_path(machine.out, Stage.MACHINE).write_text('{"stage": "machine", "sta')
    machine.run([Stage.MACHINE])
    assert len(machine.started) == 2


def test_stage_that_does_not_fit_is_skipped_with_the_reason(machine: Machine) -> None:
    machine.seconds = DEFAULT_BUDGET_S - LIMITS[Stage.SPEED].needed_s + 1
    *_, last = machine.run([Stage.MACHINE, Stage.SPEED])
    assert last.state is StageState.SKIPPED
    assert last.reason == "54 s of 540 s were left, too few; call the command again to run it"


def test_skipped_stage_keeps_what_an_earlier_call_has_measured(machine: Machine) -> None:
    machine.results[Stage.SPEED] = {"network": [1]}
    machine.ends[Stage.SPEED] = lambda: Ended(None, 150.0)
    assert states(machine.run([Stage.SPEED])) == [StageState.TIMED_OUT]
    machine.seconds = DEFAULT_BUDGET_S
    *_, last = machine.run([Stage.MACHINE, Stage.SPEED])
    assert (last.state, last.result) == (StageState.SKIPPED, {"network": [1]})


def test_default_budget_holds_the_needed_time_of_all_stages() -> None:
    assert sum(limits.needed_s for limits in LIMITS.values()) <= DEFAULT_BUDGET_S
    assert DEFAULT_BUDGET_S == 9 * 60
    assert set(LIMITS) == set(Stage)


def test_slow_stages_leave_the_needed_time_to_later_ones(machine: Machine) -> None:
    """Every stage is killed at its limit: the sum stays within the budget, and no stage is skipped."""
    for stage in Stage:
        machine.ends[stage] = lambda: Ended(None, machine.started[-1][1])

    def launch(stage: Stage, limit_s: float) -> Ended:
        machine.started.append((stage, limit_s))
        machine.now_s += limit_s
        return Ended(None, limit_s)

    records = run_stages(machine.out, SETTINGS, list(Stage), DEFAULT_BUDGET_S, launch, lambda: machine.now_s)
    assert states(records) == [StageState.TIMED_OUT] * len(Stage)
    assert sum(limit_s for _, limit_s in machine.started) <= DEFAULT_BUDGET_S


def test_limits_scale_with_the_budget() -> None:
    limit = time_limit_s(Stage.SPEED, [], 2 * DEFAULT_BUDGET_S, 2 * DEFAULT_BUDGET_S)
    assert limit == 2 * LIMITS[Stage.SPEED].most_s


@pytest.mark.parametrize(
    ("ended", "result", "state", "reason"),
    [
        (Ended(0, 1.0), {"passed": True}, StageState.PASSED, ""),
        (Ended(0, 1.0), {"passed": False, "reason": "wrong"}, StageState.FAILED, "wrong"),
        (Ended(0, 1.0), {}, StageState.CRASHED, "exit code 0"),
        (Ended(1, 1.0, err=(f"{PROGRESS}layer 3", "ValueError")), {}, StageState.CRASHED, "exit code 1, in: layer 3"),
        (Ended(-11, 1.0), {"rows": [1]}, StageState.CRASHED, "SIGSEGV"),
        (Ended(None, 9.0, err=(f"{PROGRESS}native",)), {}, StageState.TIMED_OUT, "killed after 9 s, in: native"),
        (
            Ended(None, 9.0, survivors={7: "python, state D"}),
            {},
            StageState.TIMED_OUT,
            "killed after 9 s; process 7 cannot be ended: python, state D",
        ),
    ],
)
def test_end_of_a_process(ended: Ended, result: dict[str, Any], state: StageState, reason: str) -> None:
    record = record_of_end(Stage.SPEED, 9.0, ended, result)
    assert (record.state, record.reason, record.result) == (state, reason, result)
    assert all(not line.startswith(PROGRESS) for line in record.last_lines)


def test_ctrl_c_keeps_results_and_prints_the_command_that_continues(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Ended:
        raise KeyboardInterrupt

    machine.results[Stage.CORRECTNESS] = {"part": 1}
    machine.ends[Stage.CORRECTNESS] = interrupted
    monkeypatch.setattr(sys, "argv", ["-m", "benchmark_gpu", str(machine.out), "--quick"])
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "run_stages", lambda *_: machine.run())
    with pytest.raises(SystemExit) as end:
        benchmark_gpu(machine.out, device="cpu", quick=True)
    assert end.value.code == INTERRUPTED
    assert f"-m yolo_lightning benchmark_gpu {machine.out} --quick" in capsys.readouterr().err
    content = json.loads((machine.out / "gpu.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in content.items()} == {
        "machine": "passed",
        "correctness": "interrupted",
    }
    assert content["correctness"]["result"] == {"part": 1}


def test_folder_of_other_settings_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="out must be a new folder for other settings"):
        check_folder(machine.out, RunSettings("cuda", False))


def test_unknown_content_is_refused(machine: Machine) -> None:
    (machine.out / "settings.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        check_folder(machine.out, SETTINGS)


@pytest.mark.parametrize("budget_s", [59.0, float("nan"), float("inf")])
def test_budget_must_be_finite_and_long_enough(tmp_path: Path, budget_s: float) -> None:
    with pytest.raises(ValueError, match="budget_s must be finite and >= 60"):
        benchmark_gpu(tmp_path / "out", budget_s=budget_s)


def test_results_without_records_are_a_page(machine: Machine) -> None:
    assert write_results(machine.out, SETTINGS, "command") == []
    assert (machine.out / "gpu.md").read_text().startswith("# GPU benchmark: cpu\n")


def test_parent_process_does_not_import_torch() -> None:
    code = "import sys, yolo_lightning.commands.benchmark_gpu.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
