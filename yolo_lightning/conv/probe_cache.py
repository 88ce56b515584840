"""The file that keeps what probes found between processes, so that a restarted run does not wait again.

JSON: a list of findings, each with the environment that it was made in. One file serves several devices.
"""

import json
import os
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.conv.autotune_cache import describe_environment

FORMAT = 1

Finding = dict[str, Any]
"""`outcome`, `detail` and `timeout_s` of a probe."""


class ProbeCache:
    """What probes found, by device and environment. A file that cannot be used is ignored, with a warning.

    Args:
        file: Where to keep it.
        device: The device that is probed.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        self._file = file
        # A change of these switches is an attempt to make native convolutions work.
        switches = {name: value for name, value in os.environ.items() if name.startswith(("MIOPEN_", "HSA_OVERRIDE"))}
        self._environment = describe_environment(device)._asdict() | {"switches": switches}

    def lookup(self) -> Finding | None:
        """The finding of this environment, or None."""
        return next((one["finding"] for one in self._read() if one["environment"] == self._environment), None)

    def store(self, finding: Finding) -> None:
        """Keep a finding in place of an earlier one of the same environment."""
        others = [one for one in self._read() if one["environment"] != self._environment]
        content = {"format": FORMAT, "probes": [*others, {"environment": self._environment, "finding": finding}]}
        temporary = self._file.with_name(f".writing-{uuid.uuid4().hex}-{self._file.name}.part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
            os.replace(temporary, self._file)
        except OSError as error:
            warnings.warn(f"{self._file} cannot be written, the next start probes again: {error}", stacklevel=2)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _read(self) -> list[dict[str, Any]]:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
            probes = [{"environment": one["environment"], "finding": one["finding"]} for one in content["probes"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            warnings.warn(f"{self._file} is ignored, it is no record of probes: {error!r}", stacklevel=2)
            return []
        return probes
