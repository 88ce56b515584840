"""The kernels of fused.cu, compiled for the CPU, against `torch.nn.functional.conv2d` in float64."""

import ctypes
import math
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.conv.test_conv2d import CASES, Case, random
from yolo_lightning.conv.algorithms.problem import Problem, make_problem
from yolo_lightning.conv.kernels import fused, fused_launch
from yolo_lightning.conv.kernels.fused_launch import Grid, Launcher

COMPILER = shutil.which("g++") or shutil.which("clang++")
GUARD = 1 << 10
"""Elements before and after each tensor; more than one tile."""
FENCE = 1 << 22
"""Bytes before and after each tensor that must not be accessed."""
DENSE = [case for case in CASES if case[3].get("groups", 1) == 1 and 0 not in case[0]]


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> "Guarded":
    """The kernels, emulated on one CPU with a fiber per thread of a block."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("kernels")
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    kernels = fused.source(list(fused_launch.instances()))
    source.write_text(f'#include "kernel_emulation.h"\n{kernels}\nEMULATED_LAUNCH\n')
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{Path(__file__).parent}"]
    made = subprocess.run([COMPILER, *flags, source, "-o", library], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return Guarded(fused.LibraryLauncher(library))


@pytest.fixture
def unwritten_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Guarded:
    """Launch with NaN around every tensor, which detects reads and writes outside of the tensor."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.launches: list[tuple[str, Grid, Sequence[Tensor]]] = []

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self.launches.append((name, grid, tensors))
        guarded = [self._guard(tensor) for tensor in tensors]
        before = [buffer.clone() for buffer, _ in guarded]
        self.launcher(name, grid, [view for _, view in guarded], numbers)
        *_, (buffer, result) = guarded
        tensors[-1].copy_(result)
        result.fill_(torch.nan)
        assert buffer.isnan().all(), f"{name} has written outside its result"
        for (read, _), kept in zip(guarded[:-1], before[:-1], strict=True):
            assert torch.equal(read.nan_to_num(7.0), kept.nan_to_num(7.0)), f"{name} has written to what it reads"

    @staticmethod
    def _guard(tensor: Tensor) -> tuple[Tensor, Tensor]:
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        misalignment = tensor.data_ptr() % 16 // 4
        buffer = torch.full((2 * GUARD + span + misalignment,), torch.nan)
        view = buffer.as_strided(tensor.shape, tensor.stride(), GUARD + misalignment)
        return buffer, view.copy_(tensor)


class Fenced:
    """Launch with every tensor inside a fence."""

    def __init__(self, launcher: Launcher, at_the_end: bool) -> None:
        self.launcher = launcher
        self.at_the_end = at_the_end

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        alignment = 16 if name.endswith("by_four") else 4
        fenced = [fence(tensor, alignment, self.at_the_end) for tensor in tensors]
        self.launcher(name, grid, fenced, numbers)
        tensors[-1].copy_(fenced[-1])


def fence(tensor: Tensor, alignment: int, at_the_end: bool) -> Tensor:
    """Return a copy at one end of its pages, between pages whose access ends the process."""
    room = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * FENCE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for border in (start, start + FENCE + room):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(border), ctypes.c_size_t(FENCE), 0) == 0
    offset = FENCE + ((room - tensor.nbytes) // alignment * alignment if at_the_end else 0)
    fenced = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return fenced.view(tensor.shape).copy_(tensor)


def nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def problem_of(input: Tensor, weight: Tensor, arguments: dict[str, Any]) -> Problem:
    settings = {"stride": 1, "padding": 0, "dilation": 1} | arguments
    return replace(make_problem(input, weight, None, groups=1, **settings), channels_last=True)


def check(launch: Launcher, input_shape: Sequence[int], weight_shape: Sequence[int], arguments: dict[str, Any]) -> None:
    input, weight = random(*input_shape, dtype=torch.float32), random(*weight_shape, seed=1, dtype=torch.float32)
    problem = problem_of(input, weight, arguments)
    exact = [input.double().requires_grad_(), weight.double().requires_grad_()]
    output = F.conv2d(*exact, **arguments)
    grad_output = random(*output.shape, seed=2, dtype=torch.float32)
    expected = [output, *torch.autograd.grad(output, exact, grad_output.double())]
    input, grad_output = nhwc(input), nhwc(grad_output)
    found = [
        fused_launch.forward(launch, input, weight, problem),
        fused_launch.input_gradient(launch, grad_output, weight, problem),
        fused_launch.weight_gradient(launch, input, grad_output, problem),
    ]
    for name, one, other in zip(("output", "input", "weight"), found, expected, strict=True):
        assert one.shape == other.shape
        difference = (one - other).abs().max() / other.abs().max().clamp(min=1)
        assert difference < 5e-6, f"{name} is off by {difference:.2g}"


@pytest.mark.parametrize("case", DENSE, ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_results_equal_torch(case: Case, emulated: Launcher, unwritten_is_nan: None) -> None:
    check(emulated, case[0], case[1], case[3])


@pytest.mark.parametrize("channels", [12, 7], ids=["by four", "by one"])
@pytest.mark.parametrize("tile", fused_launch.TILES, ids=str)
def test_every_tile(
    tile: Any, channels: int, emulated: Guarded, monkeypatch: pytest.MonkeyPatch, unwritten_is_nan: None
) -> None:
    monkeypatch.setattr(fused_launch, "TILES", (tile,))
    # More than one tile each way; 5 * 5 taps make more rows of the weight gradient than the largest tile has.
    check(emulated, (2, channels, 15, 14), (tile.columns + channels, channels, 5, 5), {"padding": 2})
    kernels = {name for name, *_ in emulated.launches[-3:]}
    suffix = f"{tile.rows}x{tile.columns}_{'by_four' if channels == 12 else 'by_one'}"
    assert kernels == {f"correlate_{suffix}", f"sum_products_{suffix}"}
    assert all(math.prod(grid) > 1 for _, grid, _ in emulated.launches[-3:])


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(emulated: Launcher, data: st.DataObject) -> None:
    check(emulated, *draw_convolution(data))


def draw_convolution(data: st.DataObject) -> tuple[Sequence[int], Sequence[int], dict[str, Any]]:
    """Draw shapes of an input and a weight, and further arguments, with a non-empty output."""

    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    kernel, dilation = (draw(1, 4), draw(1, 4)), (draw(1, 3), draw(1, 3))
    padding = (draw(0, 4), draw(0, 4))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [draw(smallest, smallest + 9) for smallest in least]
    arguments = {"stride": (draw(1, 4), draw(1, 4)), "padding": padding, "dilation": dilation}
    channels = draw(1, 9)
    return (draw(1, 3), channels, *size), (draw(1, 9), channels, *kernel), arguments


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and mprotect")
@pytest.mark.parametrize("at_the_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("channels", [4, 3], ids=["by four", "by one"])
@pytest.mark.parametrize("tile", fused_launch.TILES[1::2], ids=str)
def test_no_access_outside_the_tensors(
    tile: Any, channels: int, at_the_end: bool, emulated: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_launch, "TILES", (tile,))
    child = os.fork()
    if child == 0:
        try:
            fenced = Fenced(emulated.launcher, at_the_end)
            check(fenced, (2, channels, 19, 18), (channels, channels, 3, 3), {"padding": 1, "stride": 2})
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_infinity_affects_only_the_windows_that_contain_it(emulated: Guarded) -> None:
    # 27 numbers in a window, where the kernel multiplies 32.
    input, weight = nhwc(random(1, 3, 9, 9, dtype=torch.float32)), random(4, 3, 3, 3, dtype=torch.float32)
    input[0, 0, 4, 4] = torch.inf
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    assert torch.equal(output.isfinite(), F.conv2d(input, weight).isfinite())


def test_channel_slices_are_read_without_a_copy(emulated: Guarded) -> None:
    whole, weight = nhwc(random(2, 12, 6, 7, dtype=torch.float32)), random(8, 4, 3, 3, dtype=torch.float32)
    grads = nhwc(random(2, 16, 4, 5, dtype=torch.float32))
    input, grad_output = whole[:, 4:8], grads[:, 8:]
    problem = problem_of(input, weight, {})
    output = fused_launch.forward(emulated, input, weight, problem)
    grad_weight = fused_launch.weight_gradient(emulated, input, grad_output, problem)
    leaf = weight.requires_grad_()
    expected = F.conv2d(input, leaf)
    torch.testing.assert_close(output, expected.detach(), rtol=0, atol=2e-5)
    torch.testing.assert_close(grad_weight, *torch.autograd.grad(expected, leaf, grad_output), rtol=0, atol=1e-4)
    (_, _, (read, *_)), (_, _, (read_again, read_grads, _)) = emulated.launches[-2:]
    assert [read.data_ptr(), read_again.data_ptr()] == [input.data_ptr()] * 2
    assert read_grads.data_ptr() == grad_output.data_ptr()


@pytest.mark.parametrize("layout", ["crop", "expanded"])
def test_unevenly_spaced_pixels_are_copied_first(layout: str, emulated: Guarded) -> None:
    whole, weight = nhwc(random(2, 4, 9, 9, dtype=torch.float32)), random(8, 4, 3, 3, dtype=torch.float32)
    input = whole[:, :, 1:7, 2:8] if layout == "crop" else whole[:1, :, :1, :1].expand(2, 4, 6, 6)
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    torch.testing.assert_close(output, F.conv2d(input, weight), rtol=0, atol=2e-5)


def test_unaligned_tensors_are_read_one_by_one(emulated: Guarded) -> None:
    input = nhwc(random(1, 8, 5, 5, dtype=torch.float32))[:, 1:5]
    weight = random(4, 4, 1, 1, dtype=torch.float32)
    output = fused_launch.forward(emulated, input, weight, problem_of(input, weight, {}))
    torch.testing.assert_close(output, F.conv2d(input, weight), rtol=0, atol=1e-5)
    assert emulated.launches[-1][0].endswith("by_one")


def test_weight_gradient_is_split_over_pixels_and_gives_equal_bits(emulated: Guarded) -> None:
    input, grad_output = (nhwc(random(4, channels, 20, 20, dtype=torch.float32)) for channels in (3, 5))
    problem = problem_of(input, torch.empty(5, 3, 1, 1), {})
    first, second = (fused_launch.weight_gradient(emulated, input, grad_output, problem) for _ in range(2))
    assert torch.equal(first, second)
    assert emulated.launches[-1][1] == (1, 1, 6)
