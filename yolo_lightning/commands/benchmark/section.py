"""Settings of a stage, its device, and its record."""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.commands.benchmark.conv_variants import Variant, absent
from yolo_lightning.commands.benchmark.stage_record import Stage, StageRecord
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.utils.accelerator import accelerator_or_cpu, chosen_device
from yolo_lightning.utils.files import write_json


@dataclass(kw_only=True)
class Section:
    """Settings of a stage, and its record."""

    device: torch.device
    batch_size: int
    image_size: ImageSize
    rounds: int  # every round measures each variant once
    skips_native: bool = False  # whether native convolutions are not measured
    quick: bool = False  # whether few steps rehearse the stage
    folder: Path  # for files that the stage needs
    file: Path | None = None  # for the record, which is kept if the process crashes or is killed
    deadline_s: float = math.inf  # the stage should end by itself before this value of `time.monotonic`
    record: StageRecord = field(default_factory=lambda: StageRecord(stage=Stage.STEP))

    def remaining_s(self) -> float:
        """Return the seconds until the stage should have ended."""
        return self.deadline_s - time.monotonic()

    def save(self, **measured: Any) -> None:
        """Add values to the record, and store the record if the stage has a file."""
        self.record.measured |= measured
        if self.file is not None:
            write_json(self.file, asdict(self.record), indent=None, durable=False)

    def variants(self, candidates: Iterable[Variant]) -> list[Variant]:
        """Return the candidates that the device has, without native convolutions if they are not measured."""
        excluded = absent(self.device)
        if self.skips_native:
            excluded |= {variant for variant in Variant if variant.implementation == "native"}
        return [variant for variant in candidates if variant not in excluded]

    @property
    def images(self) -> str:
        """Number and size of the images of a batch in words."""
        return f"{self.batch_size} images of {self.image_size} px"


def open_device(name: str) -> torch.device:
    """Return the device called `name`, and make it the current device of its kind.

    Raises:
        ValueError: If there is no such device.
    """
    device = chosen_device(name)
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)
    return device


def device_called(name: str) -> torch.device:
    """Return the device called `name` without using it: a process that uses a GPU must not start others by fork."""
    if name == "auto":
        return accelerator_or_cpu()
    return torch.device(name)
