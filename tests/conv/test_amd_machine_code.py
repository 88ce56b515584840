"""The machine code of all GPU kernels for gfx1100, executed on a CPU by an emulator of the instruction set.

Needs clang with lld, and tinygrad's emulator, which only a checkout contains (github.com/tinygrad/tinygrad, seen with
commit a9069c17): `TINYGRAD=path/to/checkout python -m pytest -m slow tests/conv/test_amd_machine_code.py -s` prints the
largest errors. The emulator computes one wave after another, so that it finds no race.
"""

import ctypes
import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scripts.kernel_report import PRELUDE, find_clang
from tests.conv import test_fused
from tests.conv.test_fused import make_products, nhwc, only_tile
from yolo_lightning.conv.kernels import batch_norm_launch, build, fused_launch
from yolo_lightning.conv.kernels.launcher import THREADS, Grid, Operands

TINYGRAD = os.environ.get("TINYGRAD")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(find_clang() is None or shutil.which("ld.lld-19") is None, reason="there is no clang with lld"),
    pytest.mark.skipif(TINYGRAD is None, reason="TINYGRAD does not name a checkout with the emulator"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DYNAMIC_SYMBOLS = 11  # type of a section in an ELF file
LDS_UNIT = 512  # bytes
VECTOR_REGISTERS = 256 * 32  # of the emulator, for all lanes
ADDRESSES = 1 << 32
"""Bytes of address space for the shared memory, because the emulator also reads it at addresses of inactive lanes."""


class EmulatedCode:
    """Launches kernels of an ELF file of AMD's in the emulator; `launched` counts the launches by kernel."""

    def __init__(self, path: Path, emulator: Any) -> None:
        self.emulator, self.launched, self.shared_bytes = emulator, defaultdict(int), 0
        content = path.read_bytes()
        (table,) = struct.unpack_from("<Q", content, 0x28)
        size, count = struct.unpack_from("<HH", content, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", content, table + size * index) for index in range(count)]
        self.symbols: dict[str, tuple[int, int]] = {}
        for _, kind, _, _, start, extent, link, *_ in self.sections:
            for entry in range(start, start + extent, 24) if kind == DYNAMIC_SYMBOLS else ():
                name, _, _, section, value, length = struct.unpack_from("<IBBHQQ", content, entry)
                begin = self.sections[link][4] + name
                place = self.sections[section]
                self.symbols[content[begin : content.index(0, begin)].decode()] = value - place[3] + place[4], length
        self.memory = ctypes.create_string_buffer(content, len(content) + 4096)  # the emulator reads beyond the end

    def __call__(self, name: str, grid: Grid, operands: Operands, numbers: Sequence[int | float]) -> None:
        shared, scratch, size = struct.unpack_from("<III", self.memory, self.symbols[f"{name}.kd"][0])
        (resources,) = struct.unpack_from("<I", self.memory, self.symbols[f"{name}.kd"][0] + 0x34)
        units = shared // LDS_UNIT + 1
        units += units * LDS_UNIT // 4 == VECTOR_REGISTERS  # so that the sizes of two buffers differ
        resources, self.shared_bytes = (resources & ~(0x1FF << 15)) | (units << 15), units * LDS_UNIT
        packed = b"".join(struct.pack("<Q", 0 if tensor is None else tensor.data_ptr()) for tensor in operands.tensors)
        packed += b"".join(struct.pack("<f" if isinstance(number, float) else "<i", number) for number in numbers)
        arguments = ctypes.create_string_buffer(packed, max(size, len(packed)) + 64)
        start, length = self.symbols[name]
        code = ctypes.addressof(self.memory) + start
        shape = (*grid, THREADS, 1, 1)
        self.emulator.run_asm(code, length, *shape, ctypes.addressof(arguments), resources, scratch)
        self.launched[name] += 1


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedCode]:
    folder, clang = tmp_path_factory.mktemp("code"), find_clang()
    assert clang is not None
    assert TINYGRAD is not None
    source, assembly, linked = folder / "kernels.hip", folder / "kernels.s", folder / "kernels.co"
    source.write_text(PRELUDE + build.source(list(build.kernel_lines())), encoding="utf-8")
    flags = ["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "--offload-arch=gfx1100"]
    subprocess.run([clang, *flags, "-S", source, "-o", assembly], check=True)
    # The emulator does not decode the invalidation of caches, which it does not have.
    assembly.write_text(re.sub(r"\tbuffer_gl[01]_inv", "\ts_nop 0", assembly.read_text()))
    flags = ["-target", "amdgcn-amd-amdhsa", "-mcpu=gfx1100", "-c"]
    subprocess.run([clang, *flags, assembly, "-o", folder / "kernels.o"], check=True)
    subprocess.run(["ld.lld-19", "-shared", folder / "kernels.o", "-o", linked], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEV", "CPU")
        patch.setenv("CC", clang)
        patch.syspath_prepend(TINYGRAD)
        for name in [key for key in sys.modules if key == "test" or key.startswith("test.")]:  # of Python's library
            patch.delitem(sys.modules, name)
        emulator = importlib.import_module("test.mockgpu.amd.emu")
        code, buffer = EmulatedCode(linked, emulator), emulator.Buffer
        space = np.empty(ADDRESSES, np.uint8)  # uses no memory where nothing is written

        def with_addresses(device: str, size: int, dtype: Any, options: Any = None) -> Any:
            if size == code.shared_bytes // 4:
                options = emulator.BufferSpec(external_ptr=space.ctypes.data)
            return buffer(device, size, dtype, options=options)

        patch.setattr(emulator, "Buffer", with_addresses)
        yield code


ERRORS: dict[tuple[str, torch.dtype], float] = defaultdict(float)


def record(what: str, dtype: torch.dtype, actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = ((actual.double() - expected.double()).abs().max() / expected.abs().max()).item()
    ERRORS[what, dtype] = max(ERRORS[what, dtype], error)
    assert error < test_fused.TOLERANCES[dtype], f"{what}: {error:.2g}"


CASES = {
    "partial tiles": ((2, 7, 6), 3, {"padding": 1}),
    "stride 2": ((1, 7, 6), 3, {"padding": 1, "stride": 2}),
    "1 x 1 images": ((3, 1, 1), 1, {}),
    "dilation, empty splits": ((1, 9, 5), 2, {"dilation": 2}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels", [4, 3], ids=["by four", "by one"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", sorted(test_fused.DIRECT_TILES), ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_convolution(
    tile: fused_launch.KernelTile,
    dtype: torch.dtype,
    channels: int,
    case: str,
    machine_code: EmulatedCode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_tile(monkeypatch, tile)
    monkeypatch.setattr(fused_launch, "PIXELS_PER_SPLIT", 16)  # several splits of small images, in groups
    monkeypatch.setattr(fused_launch, "SPLITS_PER_GROUP", 2)
    (samples, height, width), kernel, arguments = CASES[case]
    outputs = channels if case == "1 x 1 images" else tile.columns + channels
    shapes = (samples, channels, height, width), (outputs, channels, kernel, kernel)
    check_convolution("convolution", machine_code, make_products(*shapes, arguments, dtype))


@pytest.mark.parametrize("case", test_fused.WINOGRAD)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_winograd(dtype: torch.dtype, case: str, machine_code: EmulatedCode, monkeypatch: pytest.MonkeyPatch) -> None:
    only_tile(monkeypatch, fused_launch.WINOGRAD, fused_launch.WINOGRAD_SUMS)
    monkeypatch.setattr(fused_launch, "PIXELS_PER_SPLIT", 32)
    monkeypatch.setattr(fused_launch, "SPLITS_PER_GROUP", 2)
    shape, outputs, arguments = test_fused.WINOGRAD[case]
    check_convolution("Winograd", machine_code, make_products(shape, (outputs, shape[1], 3, 3), arguments, dtype))


def check_convolution(what: str, machine_code: EmulatedCode, products: test_fused.Products) -> None:
    input, weight, grads, problem, expected = products
    results = [
        fused_launch.forward(machine_code, input, weight, problem),
        fused_launch.input_gradient(machine_code, grads, weight, problem),
        fused_launch.weight_gradient(machine_code, input, grads, problem),
    ]
    for result, other in zip(results, expected, strict=True):
        record(what, input.dtype, result, other)


@pytest.mark.parametrize("channels_last", [True, False], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize("channels", [8, 3], ids=["by four", "by one"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_normalization(
    dtype: torch.dtype, channels: int, channels_last: bool, machine_code: EmulatedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_norm_launch, "LEAST_ACCESSES", 1)
    generator = torch.Generator().manual_seed(0)
    # Planes of 8 x 6 pixels are read by four in NCHW, those of 9 x 7 one by one.
    input = torch.randn(2, channels, *((8, 6) if channels == 8 else (9, 7)), generator=generator).add(3).to(dtype)
    input = nhwc(input) if channels_last else input
    weight, bias = torch.rand(channels, generator=generator) + 0.5, torch.randn(channels, generator=generator)
    mean, variance, batches = torch.zeros(channels), torch.ones(channels), torch.zeros((), dtype=torch.int64)
    exact = [tensor.double().requires_grad_() for tensor in (input, weight, bias)]
    exact_mean, exact_variance = mean.double(), variance.double()
    normalized = F.batch_norm(exact[0], exact_mean, exact_variance, exact[1], exact[2], True, 0.1, 1e-3)
    output = F.silu(normalized)
    grads = torch.randn(output.shape, generator=generator).to(dtype)
    grads = nhwc(grads) if channels_last else grads
    of_input, of_weight, of_bias = torch.autograd.grad(output, exact, grads.double())
    result, statistics = batch_norm_launch.forward(
        machine_code, input, weight, bias, mean, variance, batches, 0.1, 1e-3
    )
    grad_input, sums = batch_norm_launch.backward(machine_code, grads, input, weight, bias, statistics)
    for actual, other in (
        (result, output.detach()),
        (mean, exact_mean),
        (variance, exact_variance),
        (grad_input, of_input),
        (sums, torch.stack([of_bias, of_weight])),
    ):
        record("normalization", dtype, actual, other)
    assert batches == 1


def test_every_kernel_was_executed(machine_code: EmulatedCode) -> None:
    """Runs last, and after all other tests of this file only."""
    print()
    for (what, dtype), error in ERRORS.items():
        print(f"{what}, {dtype}: largest error / largest value {error:.2g}")
    launches = sum(machine_code.launched.values())
    print(f"{len(machine_code.launched)} kernels, {launches} launches, {time.process_time():.0f} s of processor time")
    assert machine_code.launched.keys() == build.kernel_lines().keys()
