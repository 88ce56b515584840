"""Cache file for measurements: timings of candidates (`plan`) and results of probes (`probe`).

The file is JSON, with one entry per environment. Several processes and devices may share one file.
"""

import errno
import fcntl
import json
import os
import platform
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.conv.algorithms import table
from yolo_lightning.conv.cache_file import replace_file
from yolo_lightning.errors import UserError

FORMAT = 2
LARGEST_BYTES = 64 << 20
LOCK_WAIT_S = 10.0
LOCK_POLL_S = 0.01


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
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            entries = {}
            with suppress(ValueError):
                entries = read_entries(file)
            entries[environment] = entries.get(environment, {}) | measurements
            content = {"format": FORMAT, "environments": entries}
            replace_file(file, json.dumps(content, indent=1).encode())
    except OSError as error:
        warnings.warn(f"conv cache: cannot write {file}, no measurement is stored: {error}", stacklevel=2)


def read_entries(file: Path) -> dict[str, dict[str, Any]]:
    """Return the measurements in a cache file by environment; empty if there is no file."""
    try:
        content = json.loads(_read(file))
    except FileNotFoundError:
        return {}
    except (RecursionError, ValueError) as error:
        raise UserError(f"not JSON: {error}") from error
    entries = None
    if isinstance(content, dict) and content.get("format") == FORMAT:
        entries = content.get("environments")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f"not a cache of format {FORMAT}")
    return entries


def _read(file: Path) -> bytes:
    """Return the content of a regular file of limited size; a FIFO in its place would block the reader forever."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_BYTES:
            raise OSError(errno.EINVAL, "not a regular file of this cache", str(file))
        return opened.read(status.st_size)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the folder of a cache file, so that simultaneous writers lose no entry; wait for `LOCK_WAIT_S` at most."""
    descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(LOCK_POLL_S)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)


def describe_environment(device: torch.device) -> dict[str, str]:
    """Return everything that the speed and the results of convolutions on a device depend on."""
    is_cpu = device.type == "cpu"
    return {
        "device_type": device.type,
        "device": f"{_cpu_model()}, {torch.get_num_threads()} threads" if is_cpu else _accelerator_model(device),
        "driver": platform.release() if is_cpu else _driver(),
        "torch": torch.__version__,
        "algorithms": table.VERSION,
    }


def _cpu_model() -> str:
    # On Linux, platform.processor() is empty or the architecture only.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _accelerator_model(device: torch.device) -> str:
    module = torch.get_device_module(device)
    name = device.type
    if hasattr(module, "get_device_name"):
        name = str(module.get_device_name(device))
    properties = None
    if hasattr(module, "get_device_properties"):
        properties = module.get_device_properties(device)
    # HSA_OVERRIDE_GFX_VERSION changes the architecture, and therefore every kernel, but not the device name.
    return f"{name} {getattr(properties, 'gcnArchName', '')}".strip()


def _driver() -> str:
    """Return the runtime that torch was built for, and the version of the kernel driver if it is available."""
    built_for = {"ROCm": torch.version.hip, "CUDA": torch.version.cuda, "XPU": getattr(torch.version, "xpu", None)}
    runtime = next((f"{name} {version}" for name, version in built_for.items() if version), platform.platform())
    for path in ("/sys/module/amdgpu/version", "/sys/module/nvidia/version"):
        with suppress(OSError):
            return f"{runtime}, driver {Path(path).read_text(encoding='utf-8').strip()}"
    return f"{runtime}, kernel {platform.release()}"
