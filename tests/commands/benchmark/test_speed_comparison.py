"""Order of the rounds, times and ratios, the comparison of variants, and what the variants compute."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from yolo_lightning.commands.benchmark import comparison
from yolo_lightning.commands.benchmark.comparison import (
    Result,
    Timer,
    compare,
    fastest,
    ratio,
    result_table,
    rounds,
    time_calls,
)
from yolo_lightning.commands.benchmark.conv_variants import Variant, absent, convert, settings_of
from yolo_lightning.commands.benchmark.layer_speed import find_layers
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.training_step import make_module, random_batch
from yolo_lightning.conv import GemmConv2d, disable_gpu_kernels
from yolo_lightning.conv.kernels import gpu_kernels_enabled
from yolo_lightning.data.image_size import ImageSize

CPU = torch.device("cpu")


def section(rounds_: int = 3, **changed: object) -> Section:
    settings = {"device": CPU, "batch_size": 2, "image_size": ImageSize(64, 64), "rounds": rounds_, "folder": Path()}
    return Section(**settings | changed)


class Watch:
    """Works of known duration, and the order in which they are called."""

    def __init__(self) -> None:
        self.seen: list[tuple[Variant, int]] = []

    def work(self, variant: Variant, seconds: float) -> Callable[[], Timer]:
        def timer(calls: int) -> float:
            self.seen.append((variant, calls))
            return seconds

        return lambda: timer


@given(st.integers(1, 6), st.integers(0, 12))
def test_every_round_is_a_rotation_that_starts_one_item_later(items: int, count: int) -> None:
    orders = list(rounds(range(items), count))
    assert len(orders) == count
    for position, order in enumerate(orders):
        assert sorted(order) == list(range(items))
        assert order[0] == position % items


def test_ratio_cancels_a_slowdown_of_a_whole_round() -> None:
    # Neither the ratio of the medians (9) nor the mean of the ratios (4.3).
    gemm = Result(Variant.GEMM, [2.0, 20.0, 9.0])
    native = Result(Variant.NATIVE, [1.0, 10.0, 1.0])
    assert ratio(gemm, native) == 2.0
    assert math.isnan(ratio(gemm, Result(Variant.NATIVE, failure="no")))


def test_time_of_a_call_is_the_mean_over_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, durations = [0.0], iter((1.0, 3.0))
    monkeypatch.setattr(comparison.time, "perf_counter", lambda: now_s[0])
    assert time_calls(CPU, lambda: now_s.__setitem__(0, now_s[0] + next(durations)), calls=2) == 2.0


def test_variants_take_turns() -> None:
    watch = Watch()
    works = {variant: watch.work(variant, seconds) for variant, seconds in ((Variant.NATIVE, 1.0), (Variant.GEMM, 2.0))}
    native, gemm = compare(section(), works)
    seen = [variant for variant, _ in watch.seen]
    assert seen[:4] == [Variant.NATIVE, Variant.NATIVE, Variant.GEMM, Variant.GEMM]  # warm-up
    assert seen[4:] == [Variant.NATIVE, Variant.GEMM, Variant.GEMM, Variant.NATIVE, Variant.NATIVE, Variant.GEMM]
    assert (native.samples_s, gemm.samples_s) == ([1.0] * 3, [2.0] * 3)


def test_short_work_is_repeated_within_a_sample() -> None:
    watch = Watch()
    compare(section(1), {Variant.GEMM: watch.work(Variant.GEMM, 0.002)})
    assert [calls for _, calls in watch.seen] == [1, 1, 5]


def test_rounds_that_do_not_fit_are_left_out() -> None:
    watch = Watch()
    (result,) = compare(section(deadline_s=-1.0), {Variant.GEMM: watch.work(Variant.GEMM, 1.0)})
    assert result.samples_s == [1.0]


@pytest.mark.parametrize("fails_at", [1, 4], ids=["warm-up", "second round"])
def test_a_failing_variant_becomes_a_result(fails_at: int) -> None:
    calls = 0

    def broken(_: int) -> float:
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise RuntimeError("miopenStatusUnknownError\nand a long text")
        return 1.0

    native, gemm = compare(section(), {Variant.NATIVE: lambda: broken, Variant.GEMM: Watch().work(Variant.GEMM, 1.0)})
    assert native == Result(Variant.NATIVE, failure="RuntimeError: miopenStatusUnknownError")
    assert calls == fails_at
    assert gemm.samples_s == [1.0] * 3


def test_the_fastest_layout_is_the_reference() -> None:
    times = {Variant.NATIVE: 3.0, Variant.NATIVE_NHWC: 2.0}
    results = [Result(variant, [time_s]) for variant, time_s in times.items()]
    assert [fastest(results, name) for name in ("native", "gemm")] == [results[1], Result(Variant.GEMM)]


def test_table_contains_ratios_and_rates() -> None:
    results = [
        Result(Variant.GEMM, [0.05, 0.05, 0.06]),
        Result(Variant.NATIVE_NHWC, [0.1, 0.2, 0.12]),
        Result(Variant.NATIVE, [0.04, 0.04, 0.04]),
    ]
    text = "\n".join(result_table(results, 8))
    assert "| variant | median ms | range ms | images/s | ratio to native |" in text
    assert "| gemm | 50.00 | 50.00 to 60.00 | 160.0 | 1.25 |" in text


@pytest.mark.parametrize("variant", [variant for variant in Variant if variant not in absent(CPU)])
def test_variant_equals_conv2d(variant: Variant) -> None:
    layer, images = nn.Conv2d(4, 6, 3, padding=1, dtype=torch.float64), torch.randn(2, 4, 9, 8, dtype=torch.float64)
    expected = layer(images)
    convert(layer, variant)
    with settings_of(variant):
        torch.testing.assert_close(layer(images.contiguous(memory_format=variant.memory_format)), expected)


@pytest.mark.parametrize("variant", [Variant.GEMM, Variant.GEMM_CHECKPOINTING, Variant.NATIVE_NHWC])
def test_whole_network_gives_the_same_loss(variant: Variant) -> None:
    plain, module = make_module(), make_module()
    batch = random_batch(2, ImageSize(64, 64), seed=0)
    expected, _ = plain.detection_loss(plain(batch.images), batch)
    convert(module.graph, variant)
    with settings_of(variant):
        loss, _ = module.detection_loss(module(batch.images), batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    is_gemm = {isinstance(layer, GemmConv2d) for layer in module.graph.modules() if isinstance(layer, nn.Conv2d)}
    assert is_gemm == {variant.implementation == "gemm"}


def test_kernels_are_paused_for_variants_without_them() -> None:
    """Variants with and without GPU kernels take turns in one process, which enables the kernels once."""
    disable_gpu_kernels()
    try:
        convert(nn.Conv2d(1, 1, 1), Variant.GEMM_KERNELS)
        seen = []
        for variant in (Variant.GEMM, Variant.GEMM_KERNELS, Variant.GEMM_AUTOTUNE, Variant.NATIVE):
            with settings_of(variant):
                seen.append(gpu_kernels_enabled())
        assert seen == [False, True, True, False]
        with pytest.raises(RuntimeError, match="GPU kernels cannot be used"), settings_of(Variant.GEMM_KERNELS):
            disable_gpu_kernels()  # as after a failed build
    finally:
        disable_gpu_kernels()


def test_layers_of_the_network() -> None:
    layers = find_layers(make_module().graph, ImageSize(64, 64))
    assert sum(layer.count for layer in layers) == 63
    assert [layer.name for layer in layers if not layer.needs_input_gradient] == ["model.0.conv"]
    assert [layer.label for layer in layers[:2]] == ["3 to 16, 3x3, stride 2, 64 px", "16 to 32, 3x3, stride 2, 32 px"]


def test_skipped_implementations_are_left_out() -> None:
    assert section(skips_native=True).variants(Variant) == [Variant.GEMM, Variant.GEMM_CHECKPOINTING]
