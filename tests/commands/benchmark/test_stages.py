"""Budget, resume, the end of a child process, and the page; no child process is started."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest

from yolo_lightning.commands.benchmark import command
from yolo_lightning.commands.benchmark.command import StageName, gpu
from yolo_lightning.commands.benchmark.gpu_page import page
from yolo_lightning.commands.benchmark.result_texts import table
from yolo_lightning.commands.benchmark.stage_record import (
    Stage,
    StageRecord,
    StageState,
    read_record,
    record_file,
)
from yolo_lightning.commands.benchmark.stages import (
    DEFAULT_BUDGET_S,
    WORK,
    native_problem,
    record_of_end,
    run_stages,
)
from yolo_lightning.commands.command_line import run_tool
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision.child_process import Ended
from yolo_lightning.supervision.kill import Killed
from yolo_lightning.utils.announced_operations import PREFIX
from yolo_lightning.utils.exit_codes import INTERRUPTED
from yolo_lightning.utils.process_identity import Process

SETTINGS = {"device": "cpu", "quick": True, "batch_size": 8, "image_size": 640}
THREE = [Stage.MACHINE, Stage.CORRECTNESS, Stage.STEP]
ENVIRONMENT = {"date": "2026-01-01T00:00:00+00:00", "command": "python -m x", "device": "cuda", "quick": False}


def record(stage: Stage, state: StageState = StageState.PASSED, **content: Any) -> StageRecord:
    return StageRecord(stage=stage, state=state, seconds=1.0, **content)


class Machine:
    """Stands for the child processes: each takes a given time, and writes its record before it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds, self.now_s = folder, 10.0, 0.0
        self.started: list[tuple[Stage, float]] = []
        self.ends: dict[Stage, Callable[[], Ended]] = {}
        self.records: dict[Stage, StageRecord] = {}

    def launch(self, folder: Path, settings: Mapping[str, Any], stage: Stage, limit_s: float) -> Ended:
        self.started.append((stage, limit_s))
        self.now_s += self.seconds
        written = self.records.get(stage, record(stage, answer="done"))
        record_file(folder, stage).write_text(json.dumps(asdict(written)))
        return self.ends.get(stage, lambda: Ended(0, self.seconds))()

    def run(self, stages: list[Stage] = THREE, budget_s: float = DEFAULT_BUDGET_S) -> list[StageState | None]:
        run_stages(self.folder, SETTINGS, stages, budget_s, self.launch, lambda: self.now_s)
        records = [read_record(self.folder, stage) for stage in stages]
        return [record and record.state for record in records]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_second_call_skips_finished_stages_and_repeats_the_others(machine: Machine) -> None:
    machine.records[Stage.CORRECTNESS] = record(Stage.CORRECTNESS, StageState.FAILED, reason="rows is wrong")
    machine.ends[Stage.STEP] = lambda: Ended(-11, 1.0, err=(f"{PREFIX}native", "Segmentation fault"))
    assert machine.run() == [StageState.PASSED, StageState.FAILED, StageState.CRASHED]
    machine.started.clear()
    del machine.ends[Stage.STEP]
    assert machine.run() == [StageState.PASSED, StageState.FAILED, StageState.PASSED]
    assert [stage for stage, _ in machine.started] == [Stage.STEP]


def test_damaged_record_is_measured_again(machine: Machine) -> None:
    machine.run([Stage.MACHINE])
    (machine.folder / "machine.json").write_text('{"stage": "machine", "sta')
    machine.run([Stage.MACHINE])
    assert len(machine.started) == 2


def test_stages_share_the_budget(machine: Machine) -> None:
    """Every stage is killed at its limit: the sum stays within the budget, and every stage runs."""

    def launch(folder: Path, settings: Mapping[str, Any], stage: Stage, limit_s: float) -> Ended:
        machine.started.append((stage, limit_s))
        machine.now_s += limit_s
        return Ended(None, limit_s)

    run_stages(machine.folder, SETTINGS, list(Stage), DEFAULT_BUDGET_S, launch, lambda: machine.now_s)
    assert [stage for stage, _ in machine.started] == list(Stage) == list(WORK)
    limits = dict(machine.started)
    assert sum(limits.values()) <= DEFAULT_BUDGET_S == 600
    assert min(limits.values()) >= 55


def test_stage_that_does_not_fit_is_not_run(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.seconds = DEFAULT_BUDGET_S - 10
    assert machine.run([Stage.MACHINE, Stage.STEP]) == [StageState.PASSED, None]
    assert "step: not run, 5 s of 600 s are left; call the command again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "written", "state", "reason"),
    [
        (Ended(0, 1.0), StageState.PASSED, StageState.PASSED, ""),
        (Ended(0, 1.0), StageState.FAILED, StageState.FAILED, "wrong"),
        (Ended(0, 1.0), StageState.INTERRUPTED, StageState.CRASHED, "exit code 0"),
        (
            Ended(1, 1.0, err=(f"{PREFIX}layer 3", "ValueError")),
            StageState.INTERRUPTED,
            StageState.CRASHED,
            "exit code 1, in: layer 3",
        ),
        (Ended(-11, 1.0), StageState.PASSED, StageState.CRASHED, "SIGSEGV"),
        (
            Ended(None, 9.0, err=(f"{PREFIX}native",)),
            StageState.INTERRUPTED,
            StageState.TIMED_OUT,
            "killed after 9 s, in: native",
        ),
        (
            Ended(None, 9.0, killed=Killed(survivors={Process(7, "", "D"): "python, state D"})),
            StageState.INTERRUPTED,
            StageState.TIMED_OUT,
            "killed after 9 s; cannot be ended: process 7: python, state D",
        ),
    ],
)
def test_end_of_a_process(ended: Ended, written: StageState, state: StageState, reason: str) -> None:
    part = record(Stage.STEP, written, answer="part", reason="wrong" if written is StageState.FAILED else "")
    complete = record_of_end(part, 9.0, ended)
    assert (complete.state, complete.reason, complete.answer) == (state, reason, "part")
    assert all(not line.startswith(PREFIX) for line in complete.last_lines)


def test_ctrl_c_keeps_results_and_prints_the_command_that_continues(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path, settings: dict[str, Any], stages: list[Stage], budget_s: float) -> None:
        def stop() -> Ended:
            raise KeyboardInterrupt

        machine.records[Stage.CORRECTNESS] = record(Stage.CORRECTNESS, StageState.INTERRUPTED)
        machine.ends[Stage.CORRECTNESS] = stop
        run_stages(folder, settings, stages, budget_s, machine.launch)

    out = machine.folder / "out"
    monkeypatch.setattr(sys, "argv", ["-m", "benchmark", "gpu", str(out), "--quick"])
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "run_stages", interrupted)
    with pytest.raises(SystemExit) as end:
        gpu(out, device="cpu", quick=True)
    assert end.value.code == INTERRUPTED
    assert f"-m yolo_lightning benchmark gpu {out} --quick" in capsys.readouterr().err
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == {
        "machine": "passed",
        "correctness": "interrupted",
    }
    assert (out / "gpu.md").read_text().startswith("# GPU benchmark: cpu\n")


@pytest.mark.parametrize("budget_s", [59.0, float("nan"), float("inf")])
def test_budget_must_be_finite_and_long_enough(tmp_path: Path, budget_s: float) -> None:
    with pytest.raises(ValueError, match="budget_s must be finite and >= 60"):
        gpu(tmp_path / "out", budget_s=budget_s)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 100}, "image_size must be a multiple of 32 and >= 64, got 100"),
        ({"image_size": 32}, "image_size must be a multiple of 32 and >= 64, got 32"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"device": "toaster"}, "device must be one of auto, cpu, cuda, cuda:1, xpu, mps, got 'toaster'"),
    ],
)
def test_invalid_value_is_rejected_with_the_accepted_ones(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gpu(tmp_path / "out", **options)


def test_selected_stages_join_those_of_earlier_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of other shapes and of a rehearsal are kept apart."""
    calls: list[tuple[Path, list[Stage]]] = []
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(command, "run_stages", lambda folder, _, stages, budget_s: calls.append((folder, stages)))
    for words in (["--stages", "step", "layers"], ["--stages", "step", "--batch_size", "4"]):
        run_tool(RunSpec(("benchmark", "gpu", str(tmp_path), "--device", "cpu", *words)))
    gpu(tmp_path, device="cpu", quick=True)
    assert [stages for _, stages in calls] == [[Stage.LAYERS, Stage.STEP], [Stage.STEP], list(Stage)]
    assert len({folder for folder, _ in calls}) == 3
    assert get_args(StageName) == tuple(Stage)


TIMES = {"gemm": [0.05], "gemm-kernels": [0.02, 0.02], "native": [0.03]}
RESULTS = [{"variant": name, "samples_s": times} for name, times in TIMES.items()]
STEP = record(Stage.STEP, verdict="no", answer="gemm 50 ms", lines=["| a table |"], measured={"results": RESULTS})
DOCTOR = record(Stage.MACHINE, measured={"device": {"device": "H"}})


def test_page_answers_the_questions_in_order() -> None:
    text = page([DOCTOR, STEP], ENVIRONMENT)
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "1. Does it compute right?",
        "2. Is it faster than native, and by how much per layer?",
        "3. Which settings to use?",
        "Machine",
    ]
    assert text.startswith("# GPU benchmark: H\n")
    assert "- **no** (step, 1.0 s): gemm 50 ms" in text
    assert "- correctness: not measured" in text
    assert "| a table |" in text
    assert "**Rehearsal**" not in text
    assert "**Rehearsal**" in page([], ENVIRONMENT | {"quick": True})


def test_settings_are_those_of_the_fastest_correct_step() -> None:
    text = page([DOCTOR, STEP], ENVIRONMENT)
    assert "`gemm-kernels` has the fastest training step, 20.0 ms:" in text
    assert "| `model.convolution.backend` | `gemm` |" in text
    assert "| `model.convolution.algorithm` | `auto` |" in text
    wrong = record(Stage.CORRECTNESS, StageState.FAILED)
    assert "| `model.convolution.backend` | `native` |" in page([DOCTOR, STEP, wrong], ENVIRONMENT)
    assert "Not measured." in page([], ENVIRONMENT)


def test_crashed_stage_is_shown_with_its_last_lines_and_its_part() -> None:
    crashed = record(Stage.LAYERS, StageState.CRASHED, lines=["| part |"])
    crashed.reason, crashed.last_lines = "SIGSEGV, in: gemm", ["HIP error: invalid device function"]
    text = page([crashed, STEP], ENVIRONMENT)
    assert "- **unknown** (layers, 1.0 s): crashed: SIGSEGV, in: gemm" in text
    assert "```\nHIP error: invalid device function\n```" in text
    assert "| part |" in text


def test_table_escapes_bars() -> None:
    assert table(["a", "b"], [["x|y", 1]]) == ["| a | b |", "| --- | --- |", "| x\\|y | 1 |"]


def probed(outcome: str) -> StageRecord:
    probes = [{"probe": "convolution", "outcome": outcome, "detail": "no result after 45 s"}]
    return record(Stage.MACHINE, measured={"doctor": {"probes": probes}})


@pytest.mark.parametrize(
    ("machine_record", "problem"),
    [
        (None, ""),
        (record(Stage.MACHINE), ""),
        (probed("is slower"), ""),
        (probed("hangs"), "hangs: no result after 45 s"),
        (record(Stage.MACHINE, StageState.TIMED_OUT), "the tests of doctor hang: "),
    ],
)
def test_native_convolutions_that_hang_are_left_out(machine_record: StageRecord | None, problem: str) -> None:
    assert native_problem(machine_record) == problem
