"""Parts of the stages on a CPU: errors against float64, the largest batch, two trainings, kill and resume."""

import itertools
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conv.emulation import Guarded, LibraryLauncher, assume_available, compile_emulated
from yolo_lightning.commands.benchmark import correctness, passes, section as sections, speed, training
from yolo_lightning.commands.benchmark.conv_variants import Variant
from yolo_lightning.commands.benchmark.correctness import (
    FUSED,
    NORMALIZATION,
    TOLERANCES,
    Found,
    check_convolution,
    find_layers,
    make_module,
    reference_of,
    relative_error,
)
from yolo_lightning.commands.benchmark.findings import Findings
from yolo_lightning.commands.benchmark.kill_and_resume import problems
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.stages import Stage
from yolo_lightning.conv import disable_gpu_kernels
from yolo_lightning.conv.kernels import fused, fused_norm
from yolo_lightning.data.image_size import ImageSize

CPU = torch.device("cpu")
BUDGET_S = 2400  # a loaded machine; 1 to 2 minutes on two free cores
LAYER = next(
    one for one in find_layers(make_module().graph, ImageSize(64, 64), 2) if one.label.startswith("32 to 32, 3x3")
)


@pytest.fixture
def section(tmp_path: Path) -> Section:
    return Section(device=CPU, batch_size=2, image_size=ImageSize(64, 64), rounds=1, quick=True, folder=tmp_path)


def test_a_wrong_algorithm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, right = reference_of(LAYER, CPU), correctness.candidates

    def errors() -> dict[str, float]:
        found: Found = defaultdict(list)
        check_convolution(reference, "float32", "NHWC", CPU, found)
        return {name: max(own)[0] for (name, _), own in found.items()}

    names = set(errors())
    assert all(error < 1e-5 for error in errors().values())

    def with_a_wrong_one(*arguments: Any) -> list[Any]:
        first, *others = right(*arguments)
        wrong = replace(
            first, name="wrong", compute=lambda tensors: tuple(one.roll(1, -1) for one in first.compute(tensors))
        )
        return [first, *others, wrong]

    monkeypatch.setattr(correctness, "candidates", with_a_wrong_one)
    found = errors()
    assert {name for name, error in found.items() if error > 0.1} == set(found) - names == {"wrong"}


@pytest.fixture
def one_layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the stage treat the CPU as a GPU and check one small convolution."""
    monkeypatch.setattr(correctness, "find_layers", lambda *_: [LAYER])
    with assume_available("cpu"):
        yield
    disable_gpu_kernels()


@pytest.mark.usefixtures("one_layer")
def test_kernels_that_cannot_be_built_fail_the_stage(section: Section) -> None:
    correctness.correctness(section)
    assert not section.findings.passed
    for name, dtype in itertools.product((FUSED, NORMALIZATION), TOLERANCES):
        assert f"{name} computed nothing in {dtype}" in section.findings.reason


@pytest.mark.whole_run
@pytest.mark.usefixtures("one_layer")
def test_the_stage_passes_with_kernels_and_fails_with_a_wrong_normalization(
    section: Section, emulated: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enable(build_folder: Path) -> None:
        fused.KERNELS.enable(lambda device: emulated)
        fused_norm.KERNELS.enable(lambda device: emulated)

    monkeypatch.setattr(correctness, "enable_gpu_kernels", enable)
    correctness.correctness(section)
    assert section.findings.passed, section.findings.reason
    counts = {(name, dtype): count for name, dtype, count, *_ in section.findings.measured["errors"]}
    assert all(counts[pair] > 0 for pair in itertools.product((FUSED, NORMALIZATION), TOLERANCES))
    right = fused_norm.backward
    monkeypatch.setattr(fused_norm, "backward", lambda *arguments: [-one for one in right(*arguments) or ()])
    correctness.correctness(section)
    assert NORMALIZATION in section.findings.reason
    assert any("WRONG" in line for line in section.findings.lines)


@pytest.mark.whole_run
@pytest.mark.usefixtures("one_layer", "emulated")  # skipped without a compiler
def test_layers_and_network_are_measured_with_kernels(
    section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All variants of a GPU run with the emulated kernels."""
    launches = []
    launcher = LibraryLauncher(compile_emulated(tmp_path, checked=False))

    def recorded(name: str, *arguments: Any) -> None:
        launches.append(name)
        launcher(name, *arguments)

    monkeypatch.setattr(speed, "find_layers", lambda *_: [LAYER])
    monkeypatch.setattr(sections, "absent", lambda device: set())

    monkeypatch.setattr("yolo_lightning.conv.kernels.make_launcher", lambda *_: recorded)
    for stage in (speed.layers, speed.network):
        launches.clear()
        own = replace(section, findings=Findings())
        stage(own)
        assert own.findings.passed, own.findings.reason
        assert launches, stage
        assert "gemm-kernels" in "".join(own.findings.lines), stage


@pytest.mark.parametrize("work", [speed.layers, speed.graph])
def test_a_variant_of_this_package_that_cannot_be_built_fails_the_section(
    section: Section, monkeypatch: pytest.MonkeyPatch, work: Callable[[Section], None]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(passes, "convert", fails)
    work(section)
    assert section.findings.reason.startswith("gemm: RuntimeError: no compiler")
    assert "native" not in section.findings.reason  # the failure of a baseline is a result
    assert "`native` failed: RuntimeError: no compiler" in "".join(section.findings.lines)


def test_error_of_nan_and_of_another_shape_is_infinite() -> None:
    expected = torch.ones(2, 2, dtype=torch.float64)
    assert relative_error(torch.full((2, 2), float("nan")), expected) == float("inf")
    assert relative_error(torch.ones(2, 1), expected) == float("inf")
    assert relative_error(torch.full((2, 2), 1.5), expected) == 0.5


class Steps:
    """Stands for `TrainerSteps`: trains up to a number of images at once, and logs given losses."""

    most = 64
    error: type[Exception] = torch.OutOfMemoryError
    losses: Iterator[float] = itertools.repeat(1.0)
    weights: Iterator[float] = itertools.repeat(1.0)

    def __init__(self, section: Section, variant: Variant, images: int, max_oom_splits: int = 0, **_: Any) -> None:
        self.images, self.splits = images, max_oom_splits
        self.images_at_once: int | None = None
        self.module = self.graph = self.guarded_step = self

    def train(self, steps: int) -> dict[str, torch.Tensor]:
        at_once = self.images
        for _ in range(self.splits):
            at_once = at_once if at_once <= self.most else at_once // 2
        if at_once > self.most:
            raise self.error("out of memory")
        self.images_at_once = None if at_once == self.images else at_once
        return {"train/loss": torch.tensor(next(self.losses)), "train/skipped": torch.tensor(0.0)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.tensor(next(self.weights))}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(training, "TrainerSteps", Steps)
    return monkeypatch


@pytest.mark.parametrize(
    ("most", "largest", "failed_at", "at_once"), [(5, 4, 8, 4), (1, 1, 2, 1), (64, 16, None, None), (0, 0, 1, None)]
)
def test_largest_batch(
    section: Section, steps: pytest.MonkeyPatch, most: int, largest: int, failed_at: int | None, at_once: int | None
) -> None:
    steps.setattr(Steps, "most", most)
    row = training.largest_batch(section, Variant.GEMM, 16)
    assert row == {"largest": largest, "out_of_memory_at": failed_at, "images_at_once": at_once, "failure": None}


def test_another_error_within_the_limit_is_shown(section: Section, steps: pytest.MonkeyPatch) -> None:
    steps.setattr(Steps, "most", 2)
    steps.setattr(Steps, "error", RuntimeError)
    row = training.largest_batch(section, Variant.GEMM, 16)
    assert (row["largest"], row["failure"]) == (2, "4 images: RuntimeError: out of memory")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"losses": [1.0] * 5 + [float("nan")]}, "gemm: is not finite"),
        ({"weights": [1.0, 2.0]}, "gemm: differs"),
        ({"most": 0}, "gemm: OutOfMemoryError: out of memory"),
    ],
)
def test_two_trainings_are_judged(
    section: Section, steps: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    for name, value in change.items():
        steps.setattr(Steps, name, value if isinstance(value, int) else iter(value))
    training.training(section)
    assert section.findings.reason == reason
    assert section.findings.passed is not bool(reason)


def test_growing_memory_fails_a_training(section: Section, steps: pytest.MonkeyPatch) -> None:
    section.quick = False
    used = itertools.count(0, training.CPU_GROWTH_BYTES + 1)
    steps.setattr(training, "used_bytes", lambda device: next(used))
    training.training(section)
    assert section.findings.reason == "gemm: memory grows"


FITS = {
    "undisturbed": {"code": 0, "steps_saved": 8},
    "killed": {"code": -signal.SIGKILL, "steps_saved": 4},
    "resumed": {"code": 0, "steps_saved": 8},
}


@pytest.mark.parametrize(
    ("fit", "change", "reasons"),
    [
        ("killed", {}, []),
        ("killed", {"code": 0}, ["the killed fit ended with exit code 0, expected -9"]),
        ("killed", {"steps_saved": 0}, ["the killed fit has saved 0 of 8 steps"]),
        ("resumed", {"steps_saved": 4}, ["the resumed fit has saved 4 of 8 steps"]),
        ("undisturbed", {"code": 1}, ["the undisturbed fit ended with exit code 1, expected 0"]),
    ],
)
def test_fits_are_judged(fit: str, change: dict[str, int], reasons: list[str]) -> None:
    assert problems(FITS | {fit: FITS[fit] | change}, 8, 0.0) == reasons
    assert problems(FITS, 8, float("nan")) == ["weights are not finite"]


@pytest.mark.whole_run
@pytest.mark.timeout(BUDGET_S + 60)
def test_rehearsal_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "yolo_lightning", "benchmark", "gpu", str(out), "--device", "cpu", "--quick"]
    first = subprocess.run([*words, "--budget_s", str(BUDGET_S)], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    stages = json.loads((out / "gpu.json").read_text())["stages"]
    assert {name: stage["state"] for name, stage in stages.items()} == {stage.value: "passed" for stage in Stage}
    measured = {name: stage["findings"]["measured"] for name, stage in stages.items()}
    assert measured["resume"]["largest_difference"] == 0
    assert 0 < measured["resume"]["runs"]["killed"]["steps_saved"] < measured["resume"]["steps"]
    assert all(row["failure"] is None for row in measured["step"]["results"])
    assert measured["training"]["runs"]["gemm"]["equal"]
    assert f"page: {out / 'gpu.md'}" in first.stdout
    second = subprocess.run(words, capture_output=True, text=True, check=False)
    assert second.stderr.count("finished in an earlier call") == len(Stage)
    assert second.returncode == 0


@pytest.mark.whole_run
@pytest.mark.parametrize("section", ["layers", "graph", "step"])
def test_sections_of_the_convolutions(section: str) -> None:
    options = ["--device=cpu", "--image_size=64", "--batch_size=1", "--repeats=1", "--skip=[slow]"]
    command = [sys.executable, "-m", "yolo_lightning", "benchmark", section, *options, "--precision=bf16-mixed"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "bfloat16 autocast, 1 images of 64 px" in ended.stdout
    for variant in ("gemm", "native-nhwc", "native", *(() if section == "layers" else ("gemm-checkpointing",))):
        assert f"| {variant} ms |" in ended.stdout if section == "layers" else f"| {variant} |" in ended.stdout
    assert "slow" not in ended.stdout
    assert "failed" not in ended.stdout


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("device", "toaster", "device must be one of auto, cpu"),
        ("batch_size", 0, "batch_size must be >= 1, got 0"),
        ("repeats", 0, "repeats must be >= 1, got 0"),
        ("image_size", 100, "multiple of 32"),
        ("image_size", 32, ">= 64"),
    ],
)
def test_invalid_value_is_rejected_with_the_accepted_ones(name: str, value: object, told: str) -> None:
    from yolo_lightning.commands.benchmark.speed import convolutions

    with pytest.raises(ValueError, match=told):
        convolutions("graph", **{name: value})


def test_memory_is_limited_by_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    for total in (4 * training.LIMIT_BYTES, training.LIMIT_BYTES, None):
        monkeypatch.setattr(training, "memory_bytes", lambda device, total=total: total)
        assert training.limit_memory(cuda) is (total == 4 * training.LIMIT_BYTES)
    assert shares == [0.25]
