"""Trial of native and vendor-free layers in this process; the child process of `probe` runs it."""

import argparse
import copy
import faulthandler
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from yolo_lightning.conv.autotune import run_seconds
from yolo_lightning.conv.swap import swap_convs

PHASE = "probe: "
"""Prefix of the lines on stderr that name the next computation."""
REPEATS = 5


class Case(NamedTuple):
    """A convolution without bias, then batch normalisation, in training."""

    channels: int  # of the input
    outputs: int  # channels of the output
    kernel: int  # size in each direction; the padding is half of it
    stride: int  # step between outputs, pixels
    size: int  # height and width of the input, pixels


CASES = (
    Case(64, 64, 3, 1, 40),
    Case(128, 64, 1, 1, 80),
    # gfx1010 computes small images and hangs from a size between 42 and 48 pixels on.
    Case(32, 32, 3, 1, 80),
    Case(64, 128, 3, 2, 80),
    Case(3, 16, 3, 2, 320),
    Case(128, 128, 3, 1, 20),
)
"""Layers of YOLOv8n at 640 pixels."""
BATCH = 4


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    native_error: float  # `largest_error` of the native layers
    gemm_error: float  # `largest_error` of the vendor-free layers
    native_ms: float  # median time of the forward and backward pass through all cases, milliseconds
    gemm_ms: float  # time of the vendor-free layers
    gemm_failure: str  # exception of the vendor-free layers, or empty; if set, their error and time are infinite


def run_trial(device: torch.device) -> Trial:
    """Compute all cases on a device, native layers first, so that their failure is found early. May hang or crash."""
    layers, inputs = make_layers()
    native = [copy.deepcopy(layer).to(device) for layer in layers]
    native_error = largest_error("native convolution", native, layers, inputs)
    gemm = [swap_convs(copy.deepcopy(layer)).to(device) for layer in layers]
    gemm_error, gemm_failure = float("inf"), ""
    try:
        gemm_error = largest_error("vendor-free convolution", gemm, layers, inputs)
    except Exception as error:
        gemm_failure = f"{type(error).__name__}: {error}"
    _announce("timing")
    moved = [input.to(device) for input in inputs]
    paths = {"native": native} if gemm_failure else {"native": native, "gemm": gemm}
    times: dict[str, list[float]] = {"native": [], "gemm": [float("inf")] if gemm_failure else []}
    for _ in range(REPEATS):
        # In turns, so that other work on the device slows both.
        for name, path in paths.items():
            times[name].append(1000 * run_seconds(partial(_pass, path, moved), device))
    native_ms, gemm_ms = (statistics.median(times[name]) for name in ("native", "gemm"))
    return Trial(native_error, gemm_error, native_ms, gemm_ms, gemm_failure)


def make_layers() -> tuple[list[nn.Sequential], list[Tensor]]:
    """Return the layers of `CASES` and an input for each, with equal values in every process."""
    layers = []
    for case in CASES:
        torch.manual_seed(0)
        convolution = nn.Conv2d(case.channels, case.outputs, case.kernel, case.stride, case.kernel // 2, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(case.outputs)))
    inputs = [torch.randn(BATCH, case.channels, case.size, case.size, generator=_generator()) for case in CASES]
    return layers, inputs


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def largest_error(
    name: str, tested: Sequence[nn.Module], references: Sequence[nn.Module], inputs: Sequence[Tensor]
) -> float:
    """Return the largest error of any output, gradient or running statistic, relative to the largest value.

    Args:
        name: Name of the layers, printed on stderr with the case before each computation.
        tested: Layers for `CASES` on the tested device.
        references: The same layers on the CPU, which are computed in float64.
        inputs: Input of each layer, on the CPU.
    """
    largest = 0.0
    for case, layer, reference, input in zip(CASES, tested, references, inputs, strict=True):
        sizes = f"{case.kernel}x{case.kernel}, stride {case.stride}, {case.size}x{case.size}"
        _announce(f"{name}, {case.channels} to {case.outputs} channels, {sizes}")
        device = next(layer.parameters()).device
        found = [tensor.double().cpu() for tensor in _results(copy.deepcopy(layer), input.to(device))]
        expected = _results(copy.deepcopy(reference).double(), input.double())
        for one, other in zip(found, expected, strict=True):
            error = ((one - other).abs().max() / other.abs().max()).item()
            # This comparison also selects a NaN.
            largest = largest if error <= largest else error
    return largest


def _results(layer: nn.Module, input: Tensor) -> list[Tensor]:
    """Return the output, the gradients of input and parameters, and the running statistics."""
    leaf = input.clone().requires_grad_()
    output = layer(leaf)
    # Not the plain sum, whose gradients vanish after normalisation.
    direction = torch.randn(output.shape, generator=_generator()).to(output)
    gradients = torch.autograd.grad(output.square().mul(direction).sum(), [leaf, *layer.parameters()])
    return [output.detach(), *gradients, *(buffer for buffer in layer.buffers() if buffer.is_floating_point())]


def _announce(computation: str) -> None:
    print(f"{PHASE}{computation}", file=sys.stderr, flush=True)


def _pass(path: list[nn.Sequential], inputs: list[Tensor]) -> None:
    for layer, input in zip(path, inputs, strict=True):
        torch.autograd.grad(layer(input.requires_grad_()).square().sum(), [input, *layer.parameters()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in this process and print a `Trial` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m yolo_lightning.conv.probe",
        description="Compute a few convolutions and batch normalisations of YOLOv8n, forward and backward, natively "
        "and without the vendor library; compare both with float64 on the CPU and print errors and times as one "
        "line of JSON. The current computation is printed on stderr. Crashes or hangs if native convolutions do.",
        epilog="Fields: " + ", ".join(field.name for field in fields(Trial)),
    )
    parser.add_argument("--device", default="cuda", help="torch device: cpu, cuda or cuda:1 (default: %(default)s)")
    parser.add_argument(
        "--timeout_s", type=float, default=300.0, help="exit with a stack trace after this time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    # Ends a hang if the parent has exited. The watchdog is a C thread, which does not need the interpreter lock.
    faulthandler.dump_traceback_later(options.timeout_s, exit=True)
    try:
        trial = run_trial(torch.device(options.device))
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(asdict(trial)))
