"""Choice of `trainer.precision: auto`: mixed precision where a trial shows that it is correct and pays."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.native_failures import known_failure
from yolo_lightning.model.native_probe import AUTOCAST, LARGEST_ERROR, ProbeResult, stored_or_probed
from yolo_lightning.model.native_trial import Half
from yolo_lightning.model.precision_trial import LARGEST_SHARE, PRODUCT_TOLERANCE, PrecisionTrial

BFLOAT16_CAPABILITY = 8
"""Major compute capability of the first NVIDIA GPUs with bfloat16 units."""

LARGEST_WEIGHT_ERROR = 0.4
"""Multiple of `eps` of the dtype. Sums that are rounded once have 0.22. On a CPU without AVX-512, PyTorch rounds the
sum after every image, which gives 0.6 for 16 images and 1.2 for 64. These are the values of `weight_error`."""

TRIAL = "yolo_lightning.model.precision_trial"


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """Precision of the Trainer, and why."""

    precision: str
    reason: str


def choose_precision(
    device: torch.device,
    settings: ConvolutionSettings,
    cache_file: Path | None = None,
    *,
    command: Sequence[str] | None = None,
) -> PrecisionChoice:
    """Return the precision of `trainer.precision: auto` on a device.

    A child process compares convolutions in 16 bits with float64, and their time with float32. Its result is stored
    like that of `probe_native`.

    Args:
        device: Device of the training.
        settings: Implementation of the convolutions.
        cache_file: File with results.
        command: Replaces the command of the child in tests.
    """
    precision = half_precision(device)
    if precision is None:
        return PrecisionChoice("32-true", f"mixed precision is not tested on {device.type}")
    half: Half = AUTOCAST[precision]
    backend = settings.backend
    if backend == "auto":
        has_failed = device.type != "cpu" and known_failure(device, cache_file) is not None
        backend = "gemm" if has_failed else "native"
    options = {"algorithm": settings.algorithm, "memory_format": settings.memory_format}
    words = [TRIAL, "--half", half, "--backend", backend, "--settings", json.dumps(options)]
    depends_on = options | {"trial": TRIAL, "half": half, "backend": backend}
    result = stored_or_probed(device, settings, depends_on, words, partial(_judge, half), cache_file, command)
    if result.works:
        return PrecisionChoice(precision, result.detail)
    is_measured = result.outcome in ("slower", "wrong")
    reason = result.detail if is_measured else f"the test of {half} {result.outcome}: {result.detail}"
    return PrecisionChoice("32-true", reason)


def half_precision(device: torch.device) -> Literal["bf16-mixed", "16-mixed"] | None:
    """Return the mixed precision that is tested on a device; None for a device without one."""
    if device.type == "cpu":
        return "bf16-mixed"
    if device.type != "cuda":
        return None
    is_old = torch.version.hip is None and torch.cuda.get_device_capability(device)[0] < BFLOAT16_CAPABILITY
    return "16-mixed" if is_old else "bf16-mixed"


def _judge(half: Half, content: Any) -> ProbeResult:
    trial = msgspec.convert(content, PrecisionTrial)
    weight_limit = LARGEST_WEIGHT_ERROR * torch.finfo(getattr(torch, half)).eps
    errors = {
        "products": (trial.product_error, PRODUCT_TOLERANCE[half]),
        "layers": (trial.layer_error, LARGEST_ERROR),
        "sums of weight gradients over images": (trial.weight_error, weight_limit),
    }
    for name, (error, limit) in errors.items():
        if not error <= limit:  # also for a NaN
            return ProbeResult("wrong", f"{name} in {half} have an error of {error:.2g}, more than {limit:.2g}")
    detail = f"convolutions in {half} take {trial.share:.2f} times as long as in float32"
    if not trial.share <= LARGEST_SHARE:
        return ProbeResult("slower", f"{detail}, more than {LARGEST_SHARE:g}")
    return ProbeResult("works", detail)
