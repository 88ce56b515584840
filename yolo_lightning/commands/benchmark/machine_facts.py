"""Stage `machine`: the machine, and the checks of `doctor`."""

import json
import platform
import subprocess
import sys

from yolo_lightning.commands.benchmark.findings import MIB, NOT_MEASURED, table
from yolo_lightning.commands.benchmark.section import Section, memory_bytes
from yolo_lightning.conv.measurement_cache import describe_environment

PROBE_TIMEOUT_S = 45.0


def machine(section: Section) -> None:
    """Describe versions, the device and the findings of `doctor`, whose own tests are left out of a rehearsal."""
    section.announce("doctor")
    command = [sys.executable, "-m", "yolo_lightning", "doctor", "--device", str(section.device), "--json"]
    command += ["--probes=false"] if section.quick else ["--probe_timeout_s", str(PROBE_TIMEOUT_S)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        report = {"verdict": (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]}
    facts, memory = describe_environment(section.device), memory_bytes(section.device)
    section.save(doctor=report, device=facts, memory_bytes=memory)
    rows = [
        ["device", f"{facts['device']} (`{section.device}`)"],
        ["driver", facts["driver"]],
        ["device memory", NOT_MEASURED if memory is None else f"{memory / MIB / 1024:.1f} GiB"],
        ["torch, Python", f"{facts['torch']}, {platform.python_version()}"],
        ["system", f"{platform.platform()}, {report.get('machine', {}).get('processor', NOT_MEASURED)}"],
        ["doctor", report["verdict"]],
    ]
    rows += [[one["check"], f"{one['verdict']}: {one['found']}; {one['advice'] or NOT_MEASURED}"]
             for one in report.get("findings", ()) if one["verdict"] != "ok"]  # fmt: skip
    section.findings.add(*table(["", "value"], rows))
    section.findings.answer = f"{facts['device']}; doctor: {report['verdict']}"
