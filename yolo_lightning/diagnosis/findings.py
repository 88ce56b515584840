"""Judges a machine: every check, in the order of the report."""

from yolo_lightning.diagnosis.finding import Finding
from yolo_lightning.diagnosis.judge_gpu import gpu_findings
from yolo_lightning.diagnosis.judge_software import software_findings
from yolo_lightning.diagnosis.judge_system import system_findings
from yolo_lightning.diagnosis.machine import Machine


def findings(machine: Machine) -> list[Finding]:
    """What there is to say about a machine before anything is tried on it. Pure."""
    return [*gpu_findings(machine), *software_findings(machine), *system_findings(machine)]
