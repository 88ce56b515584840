"""Stage `machine`: the machine, and the checks of `doctor`."""

import json
import platform
import subprocess
import sys
from typing import Any

from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext

PROBE_TIMEOUT_S = 45.0


def measure(context: StageContext) -> dict[str, Any]:
    """Return versions, the device and the findings of `doctor`, whose own tests are left out of a rehearsal."""
    result: dict[str, Any] = {"system": {"platform": platform.platform(), "python": platform.python_version()}}
    context.save(result)
    context.announce("doctor")
    command = [sys.executable, "-m", "yolo_lightning", "doctor", "--device", context.device, "--json"]
    command += ["--probes=false"] if context.quick else ["--probe_timeout_s", str(PROBE_TIMEOUT_S)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        lines = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        result["doctor"] = {"verdict": "not available", "failure": lines[0]}
    else:
        result["doctor"] = {name: report[name] for name in ("verdict", "findings", "recommended")}
        result["probes"] = {one["probe"]: one for one in report["probes"]}
        machine = report["machine"]
        result["system"] |= {name: machine[name] for name in ("processor", "cores", "memory", "packages", "gpus")}
    context.save(result)
    context.announce("torch")
    result["device"] = _device(context.device)
    return result | {"passed": True}


def _device(name: str) -> dict[str, Any]:
    import torch

    from yolo_lightning.commands.benchmark_gpu.devices import memory_bytes, open_device
    from yolo_lightning.conv.measurement_cache import describe_environment

    device = open_device(name)
    facts: dict[str, Any] = {"chosen": str(device), "threads": torch.get_num_threads(), **describe_environment(device)}
    facts["memory_bytes"] = memory_bytes(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        names = ("multi_processor_count", "major", "minor", "warp_size", "gcnArchName")
        facts |= {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    facts["tf32"] = {
        "matrix products": torch.backends.cuda.matmul.allow_tf32,
        "native convolutions": torch.backends.cudnn.allow_tf32,
    }
    return facts
