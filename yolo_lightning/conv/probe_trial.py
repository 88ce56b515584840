"""Measures native against vendor-free layers in this process; what the child process of a probe runs."""

import argparse
import copy
import faulthandler
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor, nn

from yolo_lightning.conv.swap import swap_convs

PHASE = "trial: "
"""Begins each line on stderr that says what is computed next."""
REPEATS = 5


class Case(NamedTuple):
    """A convolution without bias, then batch normalisation, in training.

    Attributes:
        channels: Input channels.
        outputs: Output channels.
        kernel: Kernel taps in each direction; padded by half of it.
        stride: Step between outputs, pixels.
        size: Height and width of the input, pixels.
    """

    channels: int
    outputs: int
    kernel: int
    stride: int
    size: int


CASES = (
    Case(64, 64, 3, 1, 40),
    Case(128, 64, 1, 1, 80),
    # gfx1010 computes small maps and hangs from 42 to 48 pixels on.
    Case(32, 32, 3, 1, 80),
    Case(64, 128, 3, 2, 80),
    Case(3, 16, 3, 2, 320),
    Case(128, 128, 3, 1, 20),
)
"""Layers of YOLOv8n at 640 pixels."""
BATCH = 4


@dataclass(frozen=True)
class Trial:
    """What a trial found.

    Attributes:
        native_error: Largest difference of any output, gradient or running statistic from float64 on the CPU, as a
            share of the largest value in the same tensor.
        gemm_error: The same for the vendor-free layers.
        native_ms: Median time of forward and backward pass through all cases, milliseconds.
        gemm_ms: The same for the vendor-free layers.
        gemm_failure: The exception that the vendor-free layers raised, empty where there was none; then the numbers
            for them are infinite.
    """

    native_error: float
    gemm_error: float
    native_ms: float
    gemm_ms: float
    gemm_failure: str


def run_trial(device: torch.device) -> Trial:
    """Compute all cases on a device: natively first, so that a failure of it is found soon. May hang or crash."""
    layers = [_layer(case) for case in CASES]
    inputs = [torch.randn(BATCH, case.channels, case.size, case.size, generator=_generator()) for case in CASES]
    native = [copy.deepcopy(layer).to(device) for layer in layers]
    native_error = _largest_error("native", native, layers, inputs, device)
    gemm = [swap_convs(copy.deepcopy(layer)).to(device) for layer in layers]
    gemm_error, gemm_failure = float("inf"), ""
    try:
        gemm_error = _largest_error("vendor-free", gemm, layers, inputs, device)
    except Exception as error:
        gemm_failure = f"{type(error).__name__}: {error}"
    _say("timing")
    moved = [input.to(device) for input in inputs]
    paths = {"native": native} if gemm_failure else {"native": native, "gemm": gemm}
    times: dict[str, list[float]] = {"native": [], "gemm": [float("inf")] if gemm_failure else []}
    for _ in range(REPEATS):
        # In turn, so that other work on the device slows both.
        for name, path in paths.items():
            times[name].append(_time_ms(lambda: _pass(path, moved), device))  # noqa: B023
    native_ms, gemm_ms = (statistics.median(times[name]) for name in ("native", "gemm"))
    return Trial(native_error, gemm_error, native_ms, gemm_ms, gemm_failure)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _layer(case: Case) -> nn.Sequential:
    torch.manual_seed(0)
    convolution = nn.Conv2d(case.channels, case.outputs, case.kernel, case.stride, case.kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(case.outputs))


def _largest_error(
    name: str, path: list[nn.Sequential], layers: list[nn.Sequential], inputs: list[Tensor], device: torch.device
) -> float:
    largest = 0.0
    for case, layer, reference, input in zip(CASES, path, layers, inputs, strict=True):
        _say(
            f"{name} convolution {case.channels} to {case.outputs} channels, {case.kernel}x{case.kernel}, "
            f"stride {case.stride}, {case.size}x{case.size}"
        )
        found = [tensor.double().cpu() for tensor in _results(copy.deepcopy(layer), input.to(device))]
        expected = _results(copy.deepcopy(reference).double(), input.double())
        for one, other in zip(found, expected, strict=True):
            error = ((one - other).abs().max() / other.abs().max()).item()
            # Written this way round, a NaN counts.
            largest = largest if error <= largest else error
    return largest


def _results(layer: nn.Sequential, input: Tensor) -> list[Tensor]:
    """Output, gradients of input and parameters, running statistics."""
    leaf = input.clone().requires_grad_()
    output = layer(leaf)
    # Not the plain sum: normalisation makes its gradients vanish.
    gradients = torch.autograd.grad(output.square().mul(_direction(output)).sum(), [leaf, *layer.parameters()])
    return [output.detach(), *gradients, *(buffer for buffer in layer.buffers() if buffer.is_floating_point())]


def _direction(output: Tensor) -> Tensor:
    return torch.randn(output.shape, generator=_generator()).to(output)


def _pass(path: list[nn.Sequential], inputs: list[Tensor]) -> None:
    for layer, input in zip(path, inputs, strict=True):
        torch.autograd.grad(layer(input.requires_grad_()).square().sum(), [input, *layer.parameters()])


def _time_ms(work: Callable[[], None], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    work()
    _synchronize(device)
    return 1000 * (time.perf_counter() - start)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _say(what: str) -> None:
    print(f"{PHASE}{what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in this process and print a `Trial` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m yolo_lightning.conv.probe",
        description="Compute a few convolutions and batch normalisations of YOLOv8n, forward and backward, natively "
        "and without the vendor library; compare both with float64 on the CPU and print errors and times as one "
        "line of JSON. What is being computed is said on stderr. May crash or hang where native convolutions do.",
        epilog="Fields: " + ", ".join(field.name for field in fields(Trial)),
    )
    parser.add_argument("--device", default="cuda", help="torch device, as cpu, cuda or cuda:1 (default: %(default)s)")
    parser.add_argument(
        "--timeout_s", type=float, default=300.0, help="leave with a stack trace after this time (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    # Should the parent be gone, nobody else ends a hang. The watchdog is a thread that needs no interpreter.
    faulthandler.dump_traceback_later(options.timeout_s, exit=True)
    try:
        trial = run_trial(torch.device(options.device))
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(asdict(trial)))
