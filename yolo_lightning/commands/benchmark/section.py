"""A section of the benchmark: what it measures with, its device, and where it stores its findings."""

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.commands.benchmark.conv_variants import Variant, absent
from yolo_lightning.commands.benchmark.findings import PROGRESS, Findings
from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.utils.accelerator import chosen_device
from yolo_lightning.utils.files import replacing


@dataclass(kw_only=True)
class Section:
    """Settings of a section, and its findings."""

    device: torch.device
    batch_size: int
    image_size: ImageSize
    rounds: int  # every round measures each variant once
    precision: torch.dtype = torch.float32  # bfloat16 means autocast
    skipped: tuple[str, ...] = ()  # implementations that are not measured
    quick: bool = False  # whether few steps rehearse the section
    folder: Path  # for files that the section needs
    partial: Path | None = None  # file for the findings, which are kept if the process crashes or is killed
    limit_s: float = float("inf")  # the section should end by itself within this time
    findings: Findings = field(default_factory=Findings)
    began_s: float = field(default_factory=time.monotonic)

    def left_s(self) -> float:
        """Return the seconds until the section should have ended."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def announce(self, operation: str) -> None:
        """Print the next operation, which the record of a stage contains if the process ends in it."""
        print(f"{PROGRESS}{operation}", file=sys.stderr, flush=True)

    def save(self, **measured: Any) -> None:
        """Add values to the findings, and store the findings if the section has a file for them."""
        self.findings.measured |= measured
        if self.partial is not None:
            with replacing(self.partial, durable=False) as temporary:
                temporary.write_text(json.dumps(asdict(self.findings)) + "\n", encoding="utf-8")

    def variants(self, *order: Variant) -> tuple[Variant, ...]:
        """Return the variants that the device has and whose implementation is not skipped."""
        missing = absent(self.device)
        return tuple(one for one in order if one not in missing and one.implementation not in self.skipped)

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision is torch.bfloat16)

    @property
    def conditions(self) -> str:
        """Precision, batch size and image size in words."""
        precision = "bfloat16 autocast" if self.precision is torch.bfloat16 else "float32"
        return f"{precision}, {self.batch_size} images of {self.image_size} px"


def open_device(name: str) -> torch.device:
    """Return the device called `name`, and make it the current device of its kind.

    Raises:
        ValueError: If there is no such device.
    """
    device = chosen_device(name)
    if ":" in str(device):
        torch.accelerator.set_device_index(device.index)
    return device


def device_called(name: str) -> torch.device:
    """Return the device called `name` without using it: a process that uses a GPU must not start others by fork."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device(name) if name != "auto" else found or torch.device("cpu")


def memory_bytes(device: torch.device) -> int | None:
    """Return the total memory of an accelerator in bytes, or None if it is unknown or the device is a CPU."""
    if device.type not in ("cuda", "xpu"):
        return None
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def free_cached_memory(device: torch.device) -> None:
    """Return the memory that torch holds for later tensors to the device."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
