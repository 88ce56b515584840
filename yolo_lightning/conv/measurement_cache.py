"""Cache file for measurements: timings of candidates (`plan`) and results of probes (`probe`).

The file is JSON, with one entry per environment. Several processes and devices may share one file.
"""

import json
import os
import platform
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.conv.algorithms import table
from yolo_lightning.errors import UserError

FORMAT = 2


def load(file: Path | None, environment: str) -> dict[str, Any]:
    """Return the measurements of an environment; empty for an unknown one, without a file, and for an unusable file."""
    if file is None:
        return {}
    try:
        return read_entries(file).get(environment, {})
    except (OSError, ValueError) as error:
        warnings.warn(f"conv cache: {file} is ignored and will be replaced: {error}", stacklevel=2)
        return {}


def store(file: Path | None, environment: str, measurements: dict[str, Any]) -> None:
    """Merge the measurements of an environment into the file, if there is one; a failure causes a warning."""
    if file is None:
        return
    try:
        entries = {}
        with suppress(ValueError):
            entries = read_entries(file)
        entries[environment] = entries.get(environment, {}) | measurements
        _replace(file, {"format": FORMAT, "environments": entries})
    except OSError as error:
        warnings.warn(f"conv cache: cannot write {file}, no measurement is stored: {error}", stacklevel=2)


def read_entries(file: Path) -> dict[str, dict[str, Any]]:
    """Return the measurements in a cache file by environment; empty if there is no file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (RecursionError, ValueError) as error:
        raise UserError(f"not JSON: {error}") from error
    entries = content.get("environments") if isinstance(content, dict) and content.get("format") == FORMAT else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f"not a cache of format {FORMAT}")
    return entries


def _replace(file: Path, content: Any) -> None:
    """Write a JSON file atomically and create its folder; `conv` does not import `utils.files`, which does the same."""
    temporary = file.with_name(f".writing-{uuid.uuid4().hex}-{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        # No fsync: a file that a power failure truncates is detected and replaced.
        os.replace(temporary, file)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def describe_environment(device: torch.device) -> dict[str, str]:
    """Return everything that the speed and the results of convolutions on a device depend on."""
    if device.type == "cpu":
        name, driver = f"{_cpu_model()}, {torch.get_num_threads()} threads", platform.release()
    else:
        name, driver = _accelerator_model(device), _driver()
    return {
        "device_type": device.type,
        "device": name,
        "driver": driver,
        "torch": torch.__version__,
        "algorithms": table.VERSION,
    }


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
    built_for = {"ROCm": torch.version.hip, "CUDA": torch.version.cuda, "XPU": getattr(torch.version, "xpu", None)}
    runtime = next((f"{name} {version}" for name, version in built_for.items() if version), platform.platform())
    for path in ("/sys/module/amdgpu/version", "/sys/module/nvidia/version"):
        with suppress(OSError):
            return f"{runtime}, driver {Path(path).read_text(encoding='utf-8').strip()}"
    return f"{runtime}, kernel {platform.release()}"
