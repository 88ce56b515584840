"""On what a benchmark ran."""

import platform
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Hardware:
    """Machine and software.

    Attributes:
        date: Start, ISO 8601 with the offset from UTC.
        device: As torch calls it.
        device_name: Product name of the accelerator or processor.
        driver: Of the accelerator; on a CPU the operating system.
        torch: Version, with the platform that it was built for.
        threads: Of torch on the CPU.
    """

    date: str
    device: str
    device_name: str
    driver: str
    torch: str
    threads: int


def describe_environment(device: torch.device) -> Hardware:
    """What is known of the machine, here and now."""
    return Hardware(
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        device=str(device),
        device_name=_device_name(device),
        driver=_driver(device),
        torch=f"{torch.__version__}, " + (f"ROCm {torch.version.hip}" if torch.version.hip else _cuda()),
        threads=torch.get_num_threads(),
    )


def _cuda() -> str:
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        architecture = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
        return f"{properties.name} {architecture}".strip()
    if device.type == "xpu":
        return torch.xpu.get_device_name(device)
    for line in _first_lines(Path("/proc/cpuinfo"), 40):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver(device: torch.device) -> str:
    if device.type == "cuda":
        for path in (Path("/proc/driver/nvidia/version"), Path("/sys/module/amdgpu/version")):
            for line in _first_lines(path, 1):
                return line
    return f"{platform.system()} {platform.release()}"


def _first_lines(path: Path, count: int) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()[:count]
    except OSError:
        return []
