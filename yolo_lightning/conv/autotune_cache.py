"""Cache file for the timings of `TimedPlan`.

The file is JSON: a list of tables, each with an environment and the timings measured in it. Several processes and
devices may share one file. A table is used only in an environment equal to its own.
"""

import json
import math
import os
import platform
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from yolo_lightning.conv.algorithms import table as _algorithms

FORMAT = 1

Timings = dict[str, dict[str, float]]
"""Seconds per candidate, by the description of the problem."""


class TimingEnvironment(NamedTuple):
    """Everything that timings depend on besides the problem."""

    device_type: str
    device: str
    driver: str
    torch: str
    algorithms: str


class PlanCache:
    """Timings by device and problem, in memory and, unless `file` is None, on disk.

    A file with unusable content is ignored, and a file that cannot be written is not written again. Each case causes
    one warning.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._environments: dict[torch.device, TimingEnvironment] = {}
        self._tables: dict[TimingEnvironment, Timings] = {}
        self._stale: set[TimingEnvironment] = set()
        self._warned_of_content = False
        self._is_writable = file is not None

    def lookup(self, device: torch.device, problem: str) -> dict[str, float]:
        """Return the seconds of each timed candidate; empty for an unknown problem."""
        return self._table(device).get(problem, {})

    def store(self, device: torch.device, problem: str, seconds: dict[str, float]) -> None:
        """Store the timings of a problem and merge them into the file."""
        self._table(device)[problem] = seconds
        if self._file is None or not self._is_writable:
            return
        try:
            self._write(self._file)
        except OSError as error:
            self._is_writable = False
            warnings.warn(f"conv plan cache: cannot write {self._file}, timings are not stored: {error}", stacklevel=2)

    def _table(self, device: torch.device) -> Timings:
        environment = self._environments.get(device)
        if environment is None:
            environment = self._environments[device] = describe_environment(device)
        if environment not in self._tables:
            self._tables[environment] = self._load(environment)
        return self._tables[environment]

    def _load(self, environment: TimingEnvironment) -> Timings:
        if self._file is None:
            return {}
        try:
            stored = read_tables(self._file)
        except (OSError, ValueError) as error:
            self._warn_of_content(str(error))
            return {}
        if environment in stored:
            return stored[environment]
        stale = {other for other in stored if other.device_type == environment.device_type}
        if stale:
            self._stale |= stale
            self._warn_of_content("; ".join(_difference(other, environment) for other in sorted(stale)))
        return {}

    def _warn_of_content(self, reason: str) -> None:
        if not self._warned_of_content:
            self._warned_of_content = True
            warnings.warn(f"conv plan cache: {self._file} is ignored and will be replaced: {reason}", stacklevel=2)

    def _write(self, file: Path) -> None:
        try:
            stored = read_tables(file)
        except ValueError:
            stored = {}
        tables = {environment: timings for environment, timings in stored.items() if environment not in self._stale}
        for environment, timings in self._tables.items():
            tables[environment] = tables.get(environment, {}) | timings
        content = {
            "format": FORMAT,
            "tables": [{"environment": key._asdict(), "seconds": timings} for key, timings in tables.items()],
        }
        replace_json(file, content)


def replace_json(file: Path, content: Any) -> None:
    """Write a JSON file atomically and create its folder; `conv` does not import `utils.files`, which does the same.

    Raises:
        OSError: If the file cannot be written.
    """
    temporary = file.with_name(f".writing-{uuid.uuid4().hex}-{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        # No fsync: a file that a power failure truncates is detected and replaced.
        os.replace(temporary, file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_tables(file: Path) -> dict[TimingEnvironment, Timings]:
    """Return the tables in a cache file; empty if there is no file.

    Raises:
        ValueError: If the content is not a plan cache.
        OSError: If the file cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except RecursionError as error:
        raise ValueError("not a plan cache: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"not a plan cache of format {FORMAT}")
    try:
        return {TimingEnvironment(**table["environment"]): _checked(table["seconds"]) for table in content["tables"]}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"damaged table: {error!r}") from error


def _checked(timings: Timings) -> Timings:
    for problem, seconds in timings.items():
        for name, value in seconds.items():
            if not (isinstance(value, float) and math.isfinite(value) and value >= 0):
                raise ValueError(f"damaged table: {value!r} seconds for {name!r} of {problem!r}")
    return timings


def describe_environment(device: torch.device) -> TimingEnvironment:
    """Return the environment of timings on a device."""
    if device.type == "cpu":
        name, driver = f"{_cpu_model()}, {torch.get_num_threads()} threads", platform.release()
    else:
        name, driver = _accelerator_model(device), _driver()
    return TimingEnvironment(device.type, name, driver, torch.__version__, _algorithms.VERSION)


def _cpu_model() -> str:
    # On Linux, platform.processor() is empty or the architecture only.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _accelerator_model(device: torch.device) -> str:
    module = torch.get_device_module(device)
    name = str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type
    # HSA_OVERRIDE_GFX_VERSION changes the architecture, and therefore every kernel, but not the device name.
    properties = module.get_device_properties(device) if hasattr(module, "get_device_properties") else None
    return f"{name} {getattr(properties, 'gcnArchName', '')}".strip()


def _driver() -> str:
    """Return the runtime that torch was built for, and the version of the kernel driver if it is available."""
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    for path in ("/sys/module/amdgpu/version", "/sys/module/nvidia/version"):
        try:
            return f"{runtime}, driver {Path(path).read_text(encoding='utf-8').strip()}"
        except OSError:
            continue
    return f"{runtime}, kernel {platform.release()}"


def _difference(other: TimingEnvironment, own: TimingEnvironment) -> str:
    changed = [
        f"{name} is {now!r}, was {before!r}"
        for name, before, now in zip(TimingEnvironment._fields, other, own, strict=True)
        if before != now
    ]
    return ", ".join(changed)
