"""Stage `machine`: the machine, and the checks of `doctor`."""

import json
import platform
import subprocess
import sys

from yolo_lightning.commands.benchmark.findings import NOT_MEASURED, table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.conv.measurement_cache import describe_environment

PROBE_TIMEOUT_S = 45.0


def machine(section: Section) -> None:
    """Describe versions, the device and the findings of `doctor`, whose own tests are left out of a rehearsal."""
    section.announce("doctor")
    command = [sys.executable, "-m", "yolo_lightning", "doctor", "--device", str(section.device), "--json"]
    if section.quick:
        command.append("--probes=false")
    else:
        command.append(f"--probe_timeout_s={PROBE_TIMEOUT_S}")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        errors = ended.stderr.strip().splitlines()
        report = {"verdict": errors[-1] if errors else f"exit code {ended.returncode}"}
    facts = describe_environment(section.device)
    section.save(doctor=report, device=facts)
    machine = report.get("machine", {})
    sizes = [gpu["memory_bytes"] for gpu in machine.get("gpus", ()) if gpu["memory_bytes"] is not None]
    rows = [
        ["device", f"{facts['device']} (`{section.device}`)"],
        ["driver", facts["driver"]],
        ["GPU memory", ", ".join(f"{size / 2**30:.1f} GiB" for size in sizes) or NOT_MEASURED],
        ["torch, Python", f"{facts['torch']}, {platform.python_version()}"],
        ["system", f"{platform.platform()}, {machine.get('processor', NOT_MEASURED)}"],
        ["doctor", report["verdict"]],
    ]
    for finding in report.get("findings", ()):
        if finding["verdict"] != "ok":
            advice = finding["advice"] or NOT_MEASURED
            rows.append([finding["check"], f"{finding['verdict']}: {finding['result']}; {advice}"])
    section.findings.add(*table(["", "value"], rows))
    section.findings.answer = f"{facts['device']}; doctor: {report['verdict']}"
