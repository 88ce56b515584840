"""Checked options of the benchmark."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from yolo_lightning.data.boxes import STRIDE, check_image_size
from yolo_lightning.utils.choices import check_choices

Section = Literal["layers", "graph", "step", "stability"]
Implementation = Literal["native", "slow", "unfold", "gemm"]
Layers = Literal["six", "all"]
Precision = Literal["32-true", "bf16-mixed"]
ConvAlgorithm = Literal["table", "autotune", "compiled"]

MIN_STABILITY_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """Options of `benchmark`, which documents them; the fields have the names of the options.

    Raises:
        ValueError: If a value is not allowed.
    """

    device: torch.device
    threads: int | None
    sections: tuple[Section, ...]
    layers: Layers
    skip: tuple[Implementation, ...]
    batch_size: int
    image_size: int
    repeats: int
    precision: Precision
    tf32: bool
    vendor_search: bool
    conv_algorithm: ConvAlgorithm
    conv_algorithm_budget_s: float
    stability_steps: int
    frames: int
    epochs: int
    profile: bool
    json: Path | None

    def __post_init__(self) -> None:
        check_choices("sections", self.sections, Section)
        check_choices("skip", self.skip, Implementation)
        check_choices("layers", (self.layers,), Layers)
        check_choices("conv_algorithm", (self.conv_algorithm,), ConvAlgorithm)
        check_choices("precision", (self.precision,), Precision)
        check_image_size("image_size", self.image_size, least=2 * STRIDE)
        if not self.sections:
            raise ValueError(f"sections must contain at least one of {', '.join(get_args(Section))}, got none")
        if set(self.skip) == set(get_args(Implementation)):
            raise ValueError("skip must leave at least one implementation to measure, got all of them")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be >= 1 or null, got {self.threads}")
        for name in ("batch_size", "repeats", "frames", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not 0 < self.conv_algorithm_budget_s < math.inf:
            raise ValueError(f"conv_algorithm_budget_s must be finite and > 0, got {self.conv_algorithm_budget_s}")
        if self.stability_steps < MIN_STABILITY_STEPS:
            raise ValueError(f"stability_steps must be >= {MIN_STABILITY_STEPS}, got {self.stability_steps}")
        if self.json is not None:
            # Checked before the measurements, which take minutes.
            if self.json.is_dir():
                raise ValueError(f"json must be a file, got the folder {self.json}")
            if not self.json.parent.is_dir() or not os.access(self.json.parent, os.W_OK):
                raise ValueError(f"json must be in an existing writable folder, got {self.json}")
