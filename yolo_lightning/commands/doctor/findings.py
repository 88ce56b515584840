"""Judges a machine: every check, in the order of the report."""

from yolo_lightning.commands.doctor.finding import Finding
from yolo_lightning.commands.doctor.judge_gpu import gpu_findings
from yolo_lightning.commands.doctor.judge_software import software_findings
from yolo_lightning.commands.doctor.judge_system import system_findings
from yolo_lightning.commands.doctor.machine import MachineFacts


def findings(machine: MachineFacts) -> list[Finding]:
    """What there is to say about a machine before anything is tried on it. Pure."""
    return [*gpu_findings(machine), *software_findings(machine), *system_findings(machine)]
