"""The record that every training process of the race writes, and the fault that only its inside can cause.

One line per optimizer step, and one line with a digest of the final weights. The file is in a folder that no fault
touches.
"""

import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RECORD_VARIABLE = "FAULT_RACE_RECORD"
"""Environment variable with the path of the record."""
NAN_VARIABLE = "FAULT_RACE_NAN_STEP"
"""Environment variable with the optimizer step whose images become NaN, once; absent for none."""


class Hook:
    """Appends to the record of a run and makes the images of one step NaN."""

    def __init__(self) -> None:
        self.path = Path(os.environ[RECORD_VARIABLE])
        self.nan_step = int(os.environ.get(NAN_VARIABLE, 0))

    def images(self, images: Tensor, step: int) -> Tensor:
        """Return the float images of optimizer step `step` (from 1), or NaN in their shape at the step of the fault."""
        if step != self.nan_step:
            return images
        try:
            self.path.with_suffix(".nan").touch(exist_ok=False)
        except FileExistsError:  # the step is repeated
            return images
        self._write(fault="nan")
        return images * math.nan

    def step(self, step: int, loss: Any) -> None:
        """Record that optimizer step `step`, from 1, is done."""
        value = float(loss.detach().sum() if isinstance(loss, Tensor) else loss)
        self._write(step=step, finite=math.isfinite(value))

    def finish(self, weights: dict[str, Tensor]) -> None:
        """Record the digest of the final weights and buffers, and whether all of them are finite."""
        digest = hashlib.sha256()
        for name, tensor in sorted(weights.items()):
            digest.update(name.encode() + tensor.detach().contiguous().cpu().numpy().tobytes())
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
        self._write(digest=digest.hexdigest(), finite=finite)

    def _write(self, **values: Any) -> None:
        line = json.dumps({"at_s": time.monotonic(), "process": os.getpid(), **values}) + "\n"
        with self.path.open("a") as file:
            file.write(line)
