"""Stage `machine`: the machine, and the checks of `doctor`."""

import json
import platform
import subprocess
import sys

from yolo_lightning.commands.benchmark.result_texts import table
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.conv.measurement_cache import describe_environment
from yolo_lightning.utils.announced_operations import announce

PROBE_TIMEOUT_S = 45.0


def machine(section: Section) -> None:
    """Describe versions, the device and the findings of `doctor`, whose own tests are left out of a rehearsal."""
    announce("doctor")
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
    rows = [
        [finding["check"], finding["verdict"], finding["result"], finding["advice"]]
        for finding in report.get("findings", ())
    ]
    versions = f"torch {facts['torch']}, Python {platform.python_version()}, {platform.platform()}"
    section.record.add(f"{facts['device']} (`{section.device}`), {facts['driver']}, {versions}; `doctor`:")
    section.record.add(*table(["check", "severity", "finding", "advice"], rows))
    section.record.answer = f"{facts['device']}; doctor: {report['verdict']}"
