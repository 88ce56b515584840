"""The loops of winograd.cpp and windows.cpp against `torch.nn.functional.conv2d` in float64."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.conv.emulation import fence
from tests.conv.test_conv2d import Case, random
from tests.conv.test_fused import DENSE, Products, draw_convolution, make_products, nhwc, problem_of
from yolo_lightning.conv import disable_compiled_kernels, enable_compiled_kernels, swap_convs
from yolo_lightning.conv.kernels import compiled, compiled_launch
from yolo_lightning.conv.kernels.compiled_launch import KernelSizes, Loops
from yolo_lightning.conv.kernels.verified import BuildError

LANES = 3
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


@pytest.fixture(scope="session")
def build_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def loops(build_folder: Path) -> Loops:
    return compiled.build(build_folder)


@pytest.fixture(params=[1, LANES])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return int(request.param)


def compare(loops: Loops, products: Products) -> None:
    input, weight, grad_output, problem, (output, by_input, by_weight) = products
    launch = compiled_launch
    at_once = launch.gradients(loops, input, grad_output, weight, problem)
    found = {
        "output": (launch.forward(loops, input, weight, problem), output),
        "input gradient": (launch.input_gradient(loops, grad_output, weight, problem), by_input),
        "weight gradient": (launch.weight_gradient(loops, input, grad_output, problem), by_weight),
        "input gradient at once": (at_once[0], by_input),
        "weight gradient at once": (at_once[1], by_weight),
    }
    for name, (one, other) in found.items():
        assert one.shape == other.shape
        difference = (one - other).abs().max() / other.abs().max().clamp(min=1)
        assert difference < 1e-5, f"{name} is off by {difference:.2g}"


def check(loops: Loops, input_shape: Sequence[int], weight_shape: Sequence[int], arguments: dict[str, Any]) -> None:
    compare(loops, make_products(input_shape, weight_shape, arguments))


@needs_compiler
@pytest.mark.parametrize("case", DENSE, ids=str)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_results_equal_torch(case: Case, loops: Loops, lanes: int) -> None:
    check(loops, case[0], case[1], case[3])


@needs_compiler
@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [(3, 3), (4, 9), (13, 6), (24, 21)], ids=str)
@pytest.mark.parametrize("tile", [1, 1 << 17])
def test_winograd_equals_torch(
    tile: int, size: tuple[int, int], padding: int, loops: Loops, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_launch, "TILE_ELEMENTS", tile)
    called: list[str] = []
    monkeypatch.setattr(Loops, "__call__", counted(Loops.__call__, called))
    check(loops, (2, 16, *size), (24, 16, 3, 3), {"padding": padding})
    assert set(called) == {"winograd"}


def counted(call: Any, called: list[str]) -> Any:
    """Wrap a function and record its first arguments."""

    def count(loops: Loops, name: str, *arguments: Any) -> None:
        called.append(name)
        call(loops, name, *arguments)

    return count


@needs_compiler
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape(loops: Loops, lanes: int, data: st.DataObject) -> None:
    check(loops, *draw_convolution(data))


class Fenced(Loops):
    """Launch with every tensor inside a fence."""

    def __call__(self, name: str, sizes: KernelSizes, *values: Tensor | bool | None) -> None:
        places = {number: value for number, value in enumerate(values) if isinstance(value, Tensor) and value.numel()}
        fenced = {number: fence(dense(value), 4, self.at_the_end) for number, value in places.items()}
        super().__call__(name, sizes, *(fenced.get(number, value) for number, value in enumerate(values)))
        for number, value in places.items():
            dense(value).copy_(fenced[number])

    at_the_end = False


class FencedAtTheEnd(Fenced):
    at_the_end = True


def dense(tensor: Tensor) -> Tensor:
    """Return a flat view of the memory of a tensor."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 and not tensor.is_contiguous() else tensor


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and mprotect")
@pytest.mark.parametrize("kind", [Fenced, FencedAtTheEnd])
@pytest.mark.parametrize("channels", [3, 16], ids=["windows", "winograd"])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_access_outside_the_tensors(stride: int, channels: int, kind: type[Fenced], loops: Loops) -> None:
    # Before the fork, after which autograd may refuse to work.
    products = make_products((2, channels, 19, 18), (channels, channels, 3, 3), {"padding": 1, "stride": stride})
    child = os.fork()
    if child == 0:
        try:
            compare(kind(loops.library, loops.sgemm), products)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_compiler
def test_results_are_equal_bit_for_bit_from_call_to_call(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: LANES)
    input, weight = nhwc(random(3, 16, 31, 30, dtype=torch.float32)), random(16, 16, 3, 3, dtype=torch.float32)
    for stride in (1, 2):
        problem = problem_of(input, weight, {"padding": 1, "stride": stride})
        grads = nhwc(random(*problem.output_size, seed=2, dtype=torch.float32))
        once, again = (compiled_launch.gradients(loops, input, grads, weight, problem) for _ in range(2))
        assert all(map(torch.equal, once, again))


@pytest.fixture
def enabled(build_folder: Path) -> Any:
    enable_compiled_kernels(build_folder)
    yield
    disable_compiled_kernels()


@needs_compiler
def test_a_network_uses_enabled_loops(enabled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(Loops, "__call__", counted(Loops.__call__, called))
    network = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 4, 1))
    input = random(2, 3, 40, 40, dtype=torch.float32)
    expected = network(input).square().sum()
    swap_convs(network.to(memory_format=torch.channels_last))
    found = network(nhwc(input)).square().sum()
    found.backward()
    torch.testing.assert_close(found, expected)
    assert set(called) == {"winograd", "windows"}
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_missing_compiler_causes_one_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    enable_compiled_kernels(tmp_path)
    try:
        with pytest.warns(UserWarning, match="no compiled convolution loops .* no C.. compiler found") as caught:
            assert not any(compiled.available() for _ in range(2))
        assert len(caught) == 1
    finally:
        disable_compiled_kernels()


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="needs a shell")
def test_error_contains_the_output_of_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/bin/sh -c 'echo no such dialect >&2; exit 3' --")
    with pytest.raises(BuildError, match="failed with exit code 3: no such dialect"):
        compiled.build(tmp_path)


@needs_compiler
def test_earlier_build_is_reused(build_folder: Path, loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert compiled.build(build_folder).sgemm == loops.sgemm
