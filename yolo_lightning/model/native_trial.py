"""Trial of native and vendor-free layers on one device: errors against float64, and times of training passes.

    python -m yolo_lightning.model.native_trial --device cuda

prints a `Trial` as one line of JSON. It may crash or hang; `native_probe` runs it in a child process. Layers are
arranged by the settings of the training, so that the trial computes what training computes.
"""

import copy
import faulthandler
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jsonargparse import auto_cli
from torch import Tensor, nn

from yolo_lightning.conv.algorithms.problem import looks_channels_last, memory_format_of
from yolo_lightning.conv.plan import run_seconds
from yolo_lightning.errors import log_unexpected
from yolo_lightning.model.conv_backend import plan_of_backend
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.layers import arrange
from yolo_lightning.utils.announced_operations import announce

NATIVE = "native convolution"
VENDOR_FREE = "vendor-free convolution"
REPEATS = 5
BATCH = 4

Half = Literal["float16", "bfloat16"]
Precision = Half | None
"""Dtype of autocast if training uses mixed precision."""
Precise = Callable[[], AbstractContextManager[Any]]
"""Returns the context in which training computes its forward pass."""


class ProbeCase(NamedTuple):
    """A convolution without bias, then batch normalization and SiLU, in training."""

    channels: int  # of the input
    outputs: int  # channels of the output
    kernel: int  # size in each direction; the padding is half of it
    stride: int  # step between outputs, pixels
    size: int  # height and width of the input, pixels


CASES = (
    ProbeCase(3, 16, 3, 2, 320),
    ProbeCase(64, 64, 3, 1, 40),
    ProbeCase(128, 64, 1, 1, 80),
    # On gfx1010, a version of MIOpen computed small images and hung from a size between 42 and 48 pixels on.
    ProbeCase(32, 32, 3, 1, 80),
    ProbeCase(64, 128, 3, 2, 80),
    ProbeCase(128, 128, 3, 1, 20),
)
"""Layers of YOLOv8n at 640 pixels, the first one for images."""


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    native_error: float  # `largest_error` of the native layers
    gemm_error: float  # `largest_error` of the vendor-free layers
    native_ms: float  # median time of the forward and backward pass through all cases, milliseconds
    gemm_ms: float  # time of the vendor-free layers
    gemm_failure: str  # exception of the vendor-free layers, or empty; if set, their error and time are infinite


class ProbedBlock(nn.Module):
    """Convolution, batch normalization and activation, named as in Ultralytics' `Conv`."""

    def __init__(self, case: ProbeCase) -> None:
        super().__init__()
        self.conv = nn.Conv2d(case.channels, case.outputs, case.kernel, case.stride, case.kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(case.outputs)
        self.act = nn.SiLU()

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.act(self.bn(self.conv(input)))
        return output


def probed_layers() -> nn.Sequential:
    """Return the blocks of `CASES` on the CPU; each block has an input of its own."""
    blocks = []
    for case in CASES:
        torch.manual_seed(0)
        blocks.append(ProbedBlock(case))
    return nn.Sequential(*blocks)


def arranged(backend: Literal["native", "gemm"], device: torch.device, settings: ConvolutionSettings) -> nn.Sequential:
    """Return the blocks of `CASES` on a device, arranged as `YOLOModule` arranges its graph."""
    layers = probed_layers()
    plan = plan_of_backend(backend, settings)
    arrange(layers, backend, settings.activation_checkpointing, plan, settings.memory_format)
    return layers.to(device)


def run_trial(device: torch.device, settings: ConvolutionSettings, precision: Precision = None) -> Trial:
    """Compute all cases on a device, native layers first, so that their failure is found early. May hang or crash."""
    references = probed_layers()
    inputs = make_inputs()
    computing: Precise = nullcontext
    if precision is not None:
        computing = partial(torch.autocast, device.type, getattr(torch, precision))
    native = arranged("native", device, settings)
    native_error = largest_error(NATIVE, native, references, inputs, computing)
    implementations = {"native": native}
    gemm_error = math.inf
    gemm_failure = ""
    try:
        gemm = arranged("gemm", device, settings)
        gemm_error = largest_error(VENDOR_FREE, gemm, references, inputs, computing)
        implementations["gemm"] = gemm
    except Exception as error:  # a failure of this implementation is a result of the trial
        log_unexpected(error, RuntimeError)
        gemm_failure = f"{type(error).__name__}: {error}"
    announce("timing")
    works = {
        name: partial(_pass, layers, _inputs_for(layers, inputs), computing) for name, layers in implementations.items()
    }
    times_s = median_seconds(works, device, REPEATS)
    gemm_ms = 1000 * times_s.get("gemm", math.inf)
    return Trial(native_error, gemm_error, 1000 * times_s["native"], gemm_ms, gemm_failure)


def median_seconds(works: Mapping[str, Callable[[], None]], device: torch.device, turns: int) -> dict[str, float]:
    """Return the median time of each work; they take turns, so that other work on the device slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            seconds[name].append(run_seconds(work, device))
    return {name: statistics.median(measured) for name, measured in seconds.items()}


def make_inputs() -> list[Tensor]:
    """Return an input `(BATCH, C, H, W)` for each of `CASES`, with equal values in every process."""
    return [torch.randn(BATCH, case.channels, case.size, case.size, generator=_generator()) for case in CASES]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def largest_error(
    name: str,
    tested: nn.Sequential,
    references: nn.Sequential,
    inputs: Sequence[Tensor],
    precision: Precise = nullcontext,
) -> float:
    """Return the largest error of any output, gradient or running statistic, relative to the largest value.

    `tested` are layers for `CASES` on the tested device, computed within `precision`; `references` are the same layers
    on the CPU, which are computed in float64. `name` is printed on stderr with the case before each computation.
    """
    largest = 0.0
    device_inputs = _inputs_for(tested, inputs)
    for case, layer, reference, input, device_input in zip(
        CASES, tested, references, inputs, device_inputs, strict=True
    ):
        sizes = f"{case.kernel}x{case.kernel}, stride {case.stride}, {case.size}x{case.size}"
        announce(f"{name}, {case.channels} to {case.outputs} channels, {sizes}")
        # First to the CPU: some devices have no float64.
        results = [tensor.cpu().double() for tensor in _results(copy.deepcopy(layer), device_input, precision)]
        expected_results = _results(copy.deepcopy(reference).double(), input.double(), nullcontext)
        for result, expected in zip(results, expected_results, strict=True):
            error = ((result - expected).abs().max() / expected.abs().max()).item()
            if not error <= largest:  # also for a NaN
                largest = error
    return largest


def _inputs_for(layers: nn.Sequential, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return inputs on the device and in the memory format of layers, as preceding layers would give them."""
    weights = list(layers.parameters())
    is_channels_last = any(weight.ndim == 4 and looks_channels_last(weight) for weight in weights)
    layout = memory_format_of(is_channels_last)
    return [input.to(weights[0].device).contiguous(memory_format=layout) for input in inputs]


def _results(layer: nn.Module, input: Tensor, precision: Precise) -> list[Tensor]:
    """Return the output, the gradients of input and parameters, and the running statistics."""
    leaf = input.clone().requires_grad_()
    with precision():
        output = layer(leaf)
    # Not the plain sum, whose gradients vanish after normalization.
    direction = torch.randn(output.shape, generator=_generator()).to(leaf)
    gradients = torch.autograd.grad(output.to(leaf).square().mul(direction).sum(), [leaf, *layer.parameters()])
    return [output.detach(), *gradients, *(buffer for buffer in layer.buffers() if buffer.is_floating_point())]


def _pass(layers: nn.Sequential, inputs: Sequence[Tensor], precision: Precise) -> None:
    for layer, input in zip(layers, inputs, strict=True):
        with precision():
            output = layer(input.requires_grad_())
        torch.autograd.grad(output.float().square().sum(), [input, *layer.parameters()])


def main(
    device: str = "cuda",
    timeout_s: float = 300.0,
    settings: ConvolutionSettings = ConvolutionSettings(),  # noqa: B008 - frozen
    precision: Precision = None,
) -> None:
    """Compare native and vendor-free convolutions with float64, and print a `Trial` as one line of JSON.

    Args:
        device: cpu, cuda, cuda:1, xpu, mps.
        timeout_s: Exit with a stack trace after this time.
        settings: Settings of the layers, also as JSON.
        precision: Dtype of autocast.
    """
    watch(timeout_s)
    print(json.dumps(asdict(run_trial(torch.device(device), settings, precision))))


def watch(timeout_s: float) -> None:
    """End this process after a time: a hang whose parent has exited. The watchdog is a C thread without the GIL."""
    faulthandler.dump_traceback_later(timeout_s, exit=True)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
