"""What a benchmark is asked to do, checked before it starts."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from yolo_lightning.data.boxes import STRIDE, check_image_size
from yolo_lightning.utils.choices import check_choices

Section = Literal["layers", "graph", "step", "stability"]
Rival = Literal["native", "slow", "unfold", "gemm"]
Layers = Literal["six", "all"]
Precision = Literal["32-true", "bf16-mixed"]
ConvPlan = Literal["fixed", "timed", "fused"]

CHART_SUFFIXES = (".png", ".svg", ".pdf")
LEAST_STABILITY_STEPS = 10
CPU_STABILITY_PIXELS = 160


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """Checked values of one benchmark.

    Attributes:
        device: Where it runs.
        sections: What is measured, in this order.
        layers: `six` chosen layers of YOLOv8n or `all` distinct convolutions of it.
        skip: Rivals that are left out.
        conv_plan: How this project's convolutions choose their algorithm, see `yolo_lightning.model.layers.make_plan`.
        conv_plan_budget_s: Seconds that a timed plan may spend.
        precision: As Lightning's `--trainer.precision`.
        batch_size: Frames per step.
        image_size: Side of the square input, pixels.
        repeats: Measured rounds; each runs every rival once.
        stability_steps: Length of each of the two equal trainings; 0 leaves them out.
        stability_image_size: Side of their input, pixels.
        tf32: Whether matrix products and convolutions may round float32 to TF32.
        vendor_search: Whether cuDNN or MIOpen may time its kernels first.
        profile: Whether launches are counted, and peak memory where only a profiler sees it.
        frames: Frames per epoch, for the estimate.
        epochs: Length of the training, for the estimate.

    Raises:
        ValueError: If a value is not allowed.
    """

    device: torch.device
    sections: tuple[Section, ...]
    layers: Layers
    skip: tuple[Rival, ...]
    conv_plan: ConvPlan
    conv_plan_budget_s: float
    precision: Precision
    batch_size: int
    image_size: int
    repeats: int
    stability_steps: int
    stability_image_size: int
    tf32: bool
    vendor_search: bool
    profile: bool
    frames: int
    epochs: int

    def __post_init__(self) -> None:
        check_choices("sections", self.sections, Section)
        check_choices("skip", self.skip, Rival)
        check_choices("layers", (self.layers,), Layers)
        check_choices("conv_plan", (self.conv_plan,), ConvPlan)
        check_choices("precision", (self.precision,), Precision)
        if not self.sections:
            raise ValueError(f"sections is empty, allowed are {', '.join(get_args(Section))}")
        if set(self.skip) == set(get_args(Rival)):
            raise ValueError("skip leaves no rival to measure")
        for name in ("batch_size", "repeats", "frames", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are 1 and more")
        for name in ("image_size", "stability_image_size"):
            check_image_size(name, getattr(self, name), least=2 * STRIDE)
        if not 0 < self.conv_plan_budget_s < math.inf:
            raise ValueError(f"conv_plan_budget_s is {self.conv_plan_budget_s}, allowed are finite values above 0")
        if 0 != self.stability_steps < LEAST_STABILITY_STEPS:
            raise ValueError(
                f"stability_steps is {self.stability_steps}, allowed are 0 (off) and {LEAST_STABILITY_STEPS} and more"
            )


def stability_size(asked: int | None, image_size: int, device: torch.device) -> int:
    """Side of the stability run's input, pixels: as asked, else that of the benchmark, smaller on a CPU."""
    if asked is not None:
        return asked
    return min(image_size, CPU_STABILITY_PIXELS) if device.type == "cpu" else image_size


def check_output(name: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written, before the time is spent.

    Raises:
        ValueError: If the folder is missing or closed, the path is a folder, or its ending is not one of `suffixes`.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"{name} is {path}, allowed endings are {', '.join(suffixes)}")
    if path.is_dir():
        raise ValueError(f"{name} is {path}, which is a folder; a file is needed")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{name} is {path}, but {path.parent} is no folder that can be written to")
