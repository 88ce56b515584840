"""Parts of the stages on a CPU: errors against float64, recorded products, waits, the search for the largest batch."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conv.emulation import Guarded
from yolo_lightning.commands.benchmark.baselines import Variant
from yolo_lightning.commands.benchmark_gpu import conv_correctness, peak_memory
from yolo_lightning.commands.benchmark_gpu.conv_correctness import (
    FUSED,
    NORMALIZATION,
    TOLERANCES,
    AlgorithmErrors,
    check_shape,
    distinct_layers,
    name_of,
    reference_products,
    relative_error,
)
from yolo_lightning.commands.benchmark_gpu.device_waits import ReadingOperators
from yolo_lightning.commands.benchmark_gpu.kill_and_resume import judged
from yolo_lightning.commands.benchmark_gpu.matrix_products import MatrixProduct, issued_products
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.commands.benchmark_gpu.stage_records import Stage, StageRecord, StageState, write_record
from yolo_lightning.commands.benchmark_gpu.stage_runner import RunSettings, check_folder
from yolo_lightning.commands.benchmark_gpu.variant_speed import excluded
from yolo_lightning.conv import disable_gpu_kernels
from yolo_lightning.conv.algorithms import im2col
from yolo_lightning.conv.algorithms.algorithm import Operation
from yolo_lightning.conv.kernels import fused, fused_norm
from yolo_lightning.conv.kernels.verified import assume_available

CPU = torch.device("cpu")


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    check_folder(tmp_path, RunSettings("cpu", True))
    return StageContext(Stage.SPEED, tmp_path, "cpu", True, 60.0)


def test_a_wrong_algorithm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    products, right = im2col.ALGORITHM.products, im2col.forward
    layer = next(layer for layer in distinct_layers(64) if layer.label.startswith("32 to 32, 3x3, stride 1"))
    reference = reference_products(layer, CPU)

    def errors() -> dict[tuple[str, str], AlgorithmErrors]:
        found: dict[tuple[str, str], AlgorithmErrors] = {}
        check_shape(reference, torch.float32, "NCHW", CPU, found)
        return found

    assert all(one.largest_error < 1e-5 for one in errors().values())
    monkeypatch.setitem(products, Operation.FORWARD, lambda *arguments: right(*arguments).roll(1, -1))
    wrong = {name for (name, _), one in errors().items() if one.largest_error > 0.1}
    assert wrong == {"im2col in NHWC", "mirrored im2col in NHWC"}


@pytest.fixture
def one_layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the stage treat the CPU as a GPU and check one small convolution."""
    layer = next(layer for layer in distinct_layers(64) if layer.label.startswith("32 to 32, 3x3, stride 1"))
    monkeypatch.setattr(conv_correctness, "distinct_layers", lambda image_size: [layer])
    with assume_available("cpu"):
        yield
    disable_gpu_kernels()


@pytest.mark.usefixtures("one_layer")
def test_kernels_that_cannot_be_built_fail_the_stage(context: StageContext) -> None:
    result = conv_correctness.measure(context)
    assert not result["passed"]
    for name in (FUSED, NORMALIZATION):
        for dtype in TOLERANCES:
            assert f"{name} computed nothing in {name_of(dtype)}" in result["reason"]


@pytest.mark.usefixtures("one_layer")
def test_the_stage_passes_with_kernels_and_fails_with_a_wrong_normalization(
    context: StageContext, emulated: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enable(build_folder: Path) -> None:
        fused.KERNELS.enable(lambda device: emulated)
        fused_norm.KERNELS.enable(lambda device: emulated)

    monkeypatch.setattr(conv_correctness, "enable_gpu_kernels", enable)
    result = conv_correctness.measure(context)
    assert result["passed"], result["reason"]
    counts = {(one["algorithm"], one["dtype"]): one["cases"] for one in result["algorithms"]}
    assert all(counts[name, name_of(dtype)] > 0 for name in (FUSED, NORMALIZATION) for dtype in TOLERANCES)
    right = fused_norm.backward
    monkeypatch.setattr(fused_norm, "backward", lambda *arguments: [-one for one in right(*arguments) or ()])
    assert NORMALIZATION in conv_correctness.measure(context)["reason"]


def test_error_of_nan_and_of_another_shape_is_not_within_a_tolerance() -> None:
    expected = torch.ones(2, 2, dtype=torch.float64)
    one = AlgorithmErrors("rows", "float32")
    one.add(relative_error(torch.full((2, 2), float("nan")), expected), "case")
    assert (one.largest_error, one.worst) == (float("inf"), "case")
    assert relative_error(torch.ones(2, 1), expected) == float("inf")
    assert relative_error(torch.full((2, 2), 1.5), expected) == 0.5


def test_products_of_the_network_contain_most_of_its_operations() -> None:
    counts = issued_products(CPU, 2, 64)
    issued = sum(product.operations * count for product, count in counts.items())
    needed = sum(layer.operations for layer in distinct_layers(64))
    assert issued > needed / 4  # Winograd saves up to 5/9 of the operations of 3x3 layers
    assert {product.operator for product in counts} <= {"aten::mm", "aten::bmm"}


def test_shape_of_a_product_marks_transposed_operands() -> None:
    product = MatrixProduct("aten::mm", ((4, 8), (8, 2)), ((8, 1), (1, 8)))
    assert product.shape == "4x8 @ 8x2^T"
    assert product.operations == 2 * 4 * 8 * 2


def test_reading_operators_are_counted() -> None:
    tensor = torch.arange(3.0)
    with ReadingOperators() as watch:
        tensor.sum().item()
        tensor.nonzero()
        tensor.add(1)
    assert sorted(place.rpartition(": ")[2] for place in watch.places) == ["_local_scalar_dense", "nonzero"]
    assert watch.places.total() == 2


class Steps:
    """Stands for `TrainerSteps`: trains up to a number of images."""

    def __init__(self, images: int, splits: int, most: int, error: type[Exception]) -> None:
        self.images, self.splits, self.most, self.error = images, splits, most, error
        self.images_at_once: int | None = None
        self.module = self
        self._guarded_step = self

    def run(self, steps: int, warm_steps: int) -> float:
        at_once = self.images
        for _ in range(self.splits):
            at_once = at_once if at_once <= self.most else at_once // 2
        if at_once > self.most:
            raise self.error("out of memory")
        self.images_at_once = None if at_once == self.images else at_once
        return 0.0


@pytest.mark.parametrize(
    ("most", "largest", "failed_at", "at_once"), [(5, 4, 8, 4), (1, 1, 2, 1), (64, 16, None, None), (0, 0, 1, None)]
)
def test_largest_batch(context: StageContext, most: int, largest: int, failed_at: int | None, at_once: Any) -> None:
    row = peak_memory.within_limit(
        context,
        CPU,
        Variant.GEMM_NHWC,
        lambda _, images, splits=0: Steps(images, splits, most, torch.OutOfMemoryError),  # type: ignore[return-value]
        16,
    )
    assert (row["largest"], row["out_of_memory_at"]) == (largest, failed_at)
    assert (row["split"] or {}).get("images_at_once") == at_once


def test_another_error_within_the_limit_is_shown(context: StageContext) -> None:
    row = peak_memory.within_limit(
        context,
        CPU,
        Variant.GEMM_NHWC,
        lambda _, images, splits=0: Steps(images, splits, 2, RuntimeError),  # type: ignore[return-value]
        16,
    )
    assert (row["largest"], row["failure"]) == (2, "4 images: RuntimeError: out of memory")


@pytest.mark.parametrize(
    ("record", "native_is_left_out"),
    [
        (StageRecord(stage=Stage.MACHINE, state=StageState.TIMED_OUT, reason="killed after 80 s"), True),
        (
            StageRecord(
                stage=Stage.MACHINE,
                state=StageState.PASSED,
                result={"probes": {"convolution": {"outcome": "hangs", "detail": "no result after 45 s"}}},
            ),
            True,
        ),
        (
            StageRecord(
                stage=Stage.MACHINE,
                state=StageState.PASSED,
                result={"probes": {"convolution": {"outcome": "is slower", "detail": ""}}},
            ),
            False,
        ),
        (None, False),
    ],
)
def test_native_convolutions_that_hang_are_left_out(
    context: StageContext, record: StageRecord | None, native_is_left_out: bool
) -> None:
    if record is not None:
        write_record(context.out, record)
    found = excluded(context, CPU)
    assert (Variant.NATIVE in found) == (Variant.NATIVE_NHWC in found) == native_is_left_out
    assert Variant.GEMM_NHWC not in found


FITS = {
    "undisturbed": {"code": 0, "steps_saved": 8},
    "killed": {"code": -signal.SIGKILL, "steps_saved": 4},
    "resumed": {"code": 0, "steps_saved": 8},
}


@pytest.mark.parametrize(
    ("fit", "change", "reason"),
    [
        ("killed", {}, ""),
        ("killed", {"code": 0}, "the killed fit ended with exit code 0, expected -9"),
        ("killed", {"steps_saved": 0}, "the killed fit had saved 0 of 8 steps"),
        ("resumed", {"steps_saved": 4}, "the resumed fit has saved 4 of 8 steps"),
        ("undisturbed", {"code": 1}, "the undisturbed fit ended with exit code 1, expected 0"),
    ],
)
def test_fits_are_judged(fit: str, change: dict[str, int], reason: str) -> None:
    runs = FITS | {fit: FITS[fit] | change}
    assert judged({"runs": runs, "steps": 8, "finite": True}) == {"passed": not reason, "reason": reason}
