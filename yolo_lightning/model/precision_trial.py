"""Trial of mixed precision on one device: errors against float64, and the time of convolutions.

    python -m yolo_lightning.model.precision_trial --device cpu --batch 64

prints a `PrecisionTrial` as one line of JSON. It may crash or hang; `precision_choice` runs it in a child process.
"""

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import torch
from jsonargparse import auto_cli
from torch import Tensor, nn

from yolo_lightning.conv import swap_convs
from yolo_lightning.model.conv_backend import make_plan
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.native_trial import (
    Half,
    Precise,
    arranged,
    largest_error,
    make_inputs,
    median_seconds,
    probed_layers,
    watch,
)
from yolo_lightning.utils.announced_operations import announce

MATRICES = (4, 64, 576, 6400)
"""Batch, rows, inner size and columns: a 3x3 convolution of YOLOv8n at 640 pixels as a matrix product."""

PRODUCT_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
"""Largest error relative to the largest value. TF32 meets the first; kernels for another architecture exceed it."""

LARGEST_SHARE = 0.7
"""Largest time of convolutions in 16 bits, as a multiple of float32, with which mixed precision is chosen."""

TURNS = 9
"""Timed passes per precision."""

CHANNELS = 64
SUMMED_IMAGES = 16
SUMMED_SIZE = (40, 40)
TIMED_IMAGES_OF_CPU = 4
TIMED_IMAGES_OF_GPU = 128  # a smaller batch measures the start of kernels
TIMED_SIZE = (80, 80)


@dataclass(frozen=True)
class PrecisionTrial:
    """Result of a trial."""

    product_error: float  # `product_error`
    layer_error: float  # `largest_error` of the layers in training
    weight_error: float  # `weight_error`
    share: float  # `convolution_share`


def run_trial(
    device: torch.device,
    backend: Literal["native", "gemm"],
    settings: ConvolutionSettings,
    half: Half,
    images: int = SUMMED_IMAGES,
) -> PrecisionTrial:
    """Compute layers and convolutions of YOLOv8n on a device in `half` and float32. May hang or crash."""
    dtype = getattr(torch, half)
    announce(f"{half} product")
    product = product_error(device, dtype)
    computing = partial(torch.autocast, device.type, dtype)
    layers = arranged(backend, device, settings)
    layer = largest_error(f"{half} convolution", layers, probed_layers(), make_inputs(), computing)
    convolution = trial_convolution(device, backend, settings)
    announce(f"{half} weight gradient of {images} images")
    weight = weight_error(convolution, dtype, images)
    announce(f"time of convolutions in {half} and float32")
    return PrecisionTrial(product, layer, weight, convolution_share(convolution, dtype))


def product_error(device: torch.device, dtype: torch.dtype) -> float:
    """Return the error of a batch of matrix products, as large as a convolution, relative to the largest value."""
    batch, rows, inner, columns = MATRICES
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, inner, generator=generator).to(dtype)
    windows = torch.randn(batch, inner, columns, generator=generator).to(dtype)
    product = torch.matmul(weight.to(device), windows.to(device)).cpu().double()  # on the CPU: MPS has no float64
    expected = torch.matmul(weight.double(), windows.double())
    return ((product - expected).abs().max() / expected.abs().max()).item()


def trial_convolution(
    device: torch.device,
    backend: Literal["native", "gemm"] = "native",
    settings: ConvolutionSettings | None = None,
) -> nn.Conv2d:
    """Return a 3x3 convolution on a device, with equal weights for every device and implementation.

    `settings` are those of `gemm`; None for the default.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    if backend == "gemm":
        swap_convs(layer, plan=make_plan(settings or ConvolutionSettings()))
    return layer.to(memory_format=torch.channels_last).to(device)


def weight_error(layer: nn.Conv2d, dtype: torch.dtype, images: int = SUMMED_IMAGES) -> float:
    """Return the relative error of the weight gradient of `trial_convolution`, summed over `images` images.

    The reference is float64 with operands rounded to `dtype`. One rounding of the result is an error of 0.22 `eps` of
    the dtype. The error grows with the number of images if the sum is rounded after every image.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (images, CHANNELS, *SUMMED_SIZE)
    input = torch.randn(shape, generator=generator)
    direction = torch.randn(shape, generator=generator)
    reference = trial_convolution(torch.device("cpu")).to(dtype).double()
    gradient = _weight_gradient(layer, input, direction, dtype)
    expected = _weight_gradient(reference, input.to(dtype).double(), direction.to(dtype).double())
    return float((gradient - expected).norm() / expected.norm())


def _weight_gradient(layer: nn.Conv2d, input: Tensor, direction: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    device = layer.weight.device
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        output = layer(input.to(device))
    (gradient,) = torch.autograd.grad(output, layer.weight, direction.to(output))
    return gradient.cpu().double()


def convolution_share(layer: nn.Conv2d, dtype: torch.dtype) -> float:
    """Return the time of `trial_convolution` in `dtype` over that in float32, forward and backward."""
    device = layer.weight.device
    images = TIMED_IMAGES_OF_CPU if device.type == "cpu" else TIMED_IMAGES_OF_GPU
    input = torch.randn(images, CHANNELS, *TIMED_SIZE, generator=torch.Generator().manual_seed(0))
    input = input.to(device, memory_format=torch.channels_last).requires_grad_()

    def work(precision: Precise) -> None:
        with precision():
            output = layer(input)
        output.backward(output.detach())

    half = partial(torch.autocast, device.type, dtype)
    times_s = median_seconds({"half": partial(work, half), "float32": partial(work, nullcontext)}, device, TURNS)
    return times_s["half"] / times_s["float32"]


def main(
    device: str = "cpu",
    half: Half = "bfloat16",
    backend: Literal["native", "gemm"] = "native",
    batch: int = SUMMED_IMAGES,
    timeout_s: float = 300.0,
    settings: ConvolutionSettings = ConvolutionSettings(),  # noqa: B008 - frozen
) -> None:
    """Compare mixed precision with float32 and float64, and print a `PrecisionTrial` as one line of JSON.

    Args:
        device: cpu, cuda, cuda:1.
        half: Dtype of autocast.
        backend: Implementation of the convolutions.
        batch: Images of the summed weight gradient.
        timeout_s: Exit with a stack trace after this time.
        settings: Settings of the layers, also as JSON.
    """
    watch(timeout_s)
    print(json.dumps(asdict(run_trial(torch.device(device), backend, settings, half, batch))))


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
