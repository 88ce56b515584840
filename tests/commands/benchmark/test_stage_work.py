"""Parts of the stages on a CPU: wrong layers, layers and steps with kernels."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conv.emulation import LibraryLauncher, assume_available, compile_emulated
from yolo_lightning.commands.benchmark import correctness, layer_speed, section as sections, training_step
from yolo_lightning.commands.benchmark.conv_variants import Variant
from yolo_lightning.commands.benchmark.layer_speed import find_layers
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.stage_record import Stage, StageRecord
from yolo_lightning.commands.benchmark.training_step import make_module
from yolo_lightning.conv import disable_gpu_kernels
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.training.self_check import WrongResultError

CPU = torch.device("cpu")
BUDGET_S = 2400  # a loaded machine; 1 to 2 minutes on two free cores
LAYER = next(
    layer for layer in find_layers(make_module().graph, ImageSize(64, 64)) if layer.label.startswith("32 to 32, 3x3")
)


@pytest.fixture
def section(tmp_path: Path) -> Section:
    return Section(device=CPU, batch_size=2, image_size=ImageSize(64, 64), rounds=1, quick=True, folder=tmp_path)


@pytest.fixture
def like_a_gpu() -> Iterator[None]:
    """Let the stages treat the CPU as a GPU."""
    with assume_available("cpu"):
        yield
    disable_gpu_kernels()


class CheckedSteps:
    """Stands for `TrainerSteps`: the self-check finds a wrong layer in one variant and precision."""

    wrong: tuple[Variant, str] | None = None

    def __init__(self, section: Section, variant: Variant, precision: str, self_check_share: float) -> None:
        assert self_check_share == 1.0
        self.key = (variant, precision)

    def time(self, steps: int) -> float:
        assert steps >= 63
        if self.key == self.wrong:
            raise WrongResultError("layer model.0.conv, output: error 1 exceeds the limit 0.1")
        return 1.0


@pytest.mark.parametrize("wrong", [None, (Variant.GEMM, "bf16-mixed")])
def test_a_wrong_layer_fails_the_stage(
    section: Section, monkeypatch: pytest.MonkeyPatch, wrong: tuple[Variant, str] | None
) -> None:
    monkeypatch.setattr(correctness, "TrainerSteps", CheckedSteps)
    monkeypatch.setattr(CheckedSteps, "wrong", wrong)
    correctness.correctness(section)
    page = "\n".join(section.record.lines)
    assert "| gemm | 32-true | correct |" in page
    assert (section.record.reason == "") is (wrong is None)
    if wrong is not None:
        assert section.record.reason.startswith("gemm, bf16-mixed: WrongResultError: layer model.0.conv, output")


@pytest.mark.whole_run
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("like_a_gpu", "emulated")  # skipped without a compiler
def test_layers_and_steps_are_measured_with_kernels(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All variants of a GPU run with the emulated kernels."""
    launches = []
    launcher = LibraryLauncher(compile_emulated(tmp_path, checked=False))

    def recorded(name: str, *arguments: Any) -> None:
        launches.append(name)
        launcher(name, *arguments)

    monkeypatch.setattr(layer_speed, "find_layers", lambda *_: [LAYER])
    monkeypatch.setattr(sections, "absent", lambda device: set())

    monkeypatch.setattr("yolo_lightning.conv.kernels.make_launcher", lambda *_: recorded)
    monkeypatch.setattr(training_step, "BFLOAT16_VARIANTS", ())  # the emulation takes seconds per step
    monkeypatch.setattr(training_step, "WARM_STEPS", 1)
    for stage in (layer_speed.layers, training_step.step):
        launches.clear()
        measured = replace(section, record=StageRecord(stage=Stage.LAYERS))
        stage(measured)
        assert not measured.record.reason
        assert launches, stage
        assert "gemm-kernels" in "".join(measured.record.lines), stage


@pytest.mark.parametrize("module", [layer_speed, training_step])
def test_a_variant_of_this_package_that_cannot_be_built_fails_the_section(
    section: Section, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(module, "convert", fails)
    stage = layer_speed.layers if module is layer_speed else training_step.step
    stage(section)
    assert section.record.reason.startswith("gemm: RuntimeError: no compiler")
    assert "native" not in section.record.reason  # the failure of a baseline is a result
    assert "`native` failed: RuntimeError: no compiler" in "".join(section.record.lines)


@pytest.mark.whole_run
@pytest.mark.timeout(BUDGET_S + 60)
def test_rehearsal_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "yolo_lightning", "benchmark", "gpu", str(out), "--device", "cpu", "--quick"]
    first = subprocess.run([*words, "--budget_s", str(BUDGET_S)], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == {stage.value: "passed" for stage in Stage}
    measured = {name: stage["measured"] for name, stage in stages.items()}
    assert all(row["failure"] is None for row in measured["step"]["results"])
    assert f"page: {out / 'gpu.md'}" in first.stdout
    second = subprocess.run(words, capture_output=True, text=True, check=False)
    assert second.stderr.count("finished in an earlier call") == len(Stage)
    assert second.returncode == 0
