"""Cache file for the results of `probe`, so that a restarted run need not wait for a probe again.

The file is JSON: a list of findings, each with the environment of the probe. Several devices may share one file.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.conv.autotune_cache import describe_environment, replace_json

FORMAT = 1

Finding = dict[str, Any]
"""`outcome`, `detail` and `timeout_s` of a probe."""


class ProbeCache:
    """Results of probes, by device and environment. A file with unusable content is ignored with a warning.

    Args:
        file: The cache file.
        device: The probed device.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        self._file = file
        # A user who changes these variables tries to make native convolutions work, which requires a new probe.
        switches = {name: value for name, value in os.environ.items() if name.startswith(("MIOPEN_", "HSA_OVERRIDE"))}
        self._environment = describe_environment(device)._asdict() | {"switches": switches}

    def lookup(self) -> Finding | None:
        """Return the finding of this environment, or None."""
        return next((one["finding"] for one in self._read() if one["environment"] == self._environment), None)

    def store(self, finding: Finding) -> None:
        """Store a finding and replace an earlier one of an equal environment."""
        others = [one for one in self._read() if one["environment"] != self._environment]
        content = {"format": FORMAT, "probes": [*others, {"environment": self._environment, "finding": finding}]}
        try:
            replace_json(self._file, content)
        except OSError as error:
            warnings.warn(
                f"conv probe cache: cannot write {self._file}, the next start probes again: {error}", stacklevel=2
            )

    def _read(self) -> list[dict[str, Any]]:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format must be {FORMAT}, got {content['format']!r}")
            probes = [{"environment": one["environment"], "finding": one["finding"]} for one in content["probes"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            warnings.warn(f"conv probe cache: {self._file} is ignored, not a probe cache: {error!r}", stacklevel=2)
            return []
        return probes
