"""Tests of everything that can hang or crash, each in its own child process, and the meaning of their outcomes."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from yolo_lightning.commands.doctor.machine_findings import Finding, Severity
from yolo_lightning.supervision.child_process import Ended, run_child
from yolo_lightning.utils.announced_operations import last_operation


class Outcome(StrEnum):
    """Outcome of a probe."""

    WORKS = "works"
    SLOWER = "is slower"
    WRONG = "is wrong"
    FAILS = "fails"
    CRASHES = "crashes"
    HANGS = "hangs"
    NOT_TRIED = "not tried"


class Probe(StrEnum):
    """The probes in the order in which they run; the most likely to hang the GPU are last."""

    PACKAGES = "packages"
    DEVICE = "device"
    LOADER = "loader"
    MATMUL_FLOAT32 = "matmul_float32"
    MATMUL_FLOAT16 = "matmul_float16"
    MATMUL_BFLOAT16 = "matmul_bfloat16"
    MATMUL_EXACT = "matmul_exact"
    OWN_CONVOLUTION = "own_convolution"
    CONVOLUTION = "convolution"


NO_TRAINING = "training cannot work with this; see the finding about the torch build first"
NO_WORKERS = "data.loader.num_workers: 0 trains without workers; a larger /dev/shm or more memory may help"
FLOAT32 = "keep trainer.precision: 32-true"
INEXACT = (
    "model.convolution.backend: gemm divides large products; a product that differs between two runs points to a fault "
    "of the card, its memory or its driver"
)
MEANING = {
    Probe.PACKAGES: ("packages load", Severity.BAD, NO_TRAINING),
    Probe.DEVICE: ("torch's device", Severity.BAD, NO_TRAINING),
    Probe.LOADER: ("loader, 2 workers", Severity.BAD, NO_WORKERS),
    Probe.MATMUL_FLOAT32: ("float32 products", Severity.BAD, NO_TRAINING),
    Probe.MATMUL_FLOAT16: ("float16 products", Severity.NOTE, FLOAT32),
    Probe.MATMUL_BFLOAT16: ("bfloat16 products", Severity.NOTE, FLOAT32),
    Probe.MATMUL_EXACT: ("large and repeated products", Severity.WARNING, INEXACT),
    Probe.OWN_CONVOLUTION: ("own convolution", Severity.WARNING, "model.convolution.backend: native does not need it"),
    Probe.CONVOLUTION: ("vendor convolution", Severity.WARNING, "model.convolution.backend: gemm does not need it"),
}
"""Title of each probe, and severity and advice if it fails; for convolutions, if the other implementation works."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Result of a probe."""

    probe: Probe
    outcome: Outcome
    detail: str = ""  # evidence in a few words
    seconds: float = 0.0
    device: str = ""  # found by the probe `DEVICE`

    @property
    def works(self) -> bool:
        """Whether the tested function is usable, even if slow."""
        return self.outcome in (Outcome.WORKS, Outcome.SLOWER)

    @property
    def failed(self) -> bool:
        """Whether the probe ran and the tested function is not usable."""
        return not self.works and self.outcome is not Outcome.NOT_TRIED


def run_probes(device: str, timeout_s: float) -> list[ProbeOutcome]:
    """Run all probes one after another; after a hang of the GPU, no further probe uses the GPU.

    The title of the running probe is printed to stderr, which keeps stdout free for JSON. The time limit of each probe
    includes the process start.
    """
    results: list[ProbeOutcome] = []
    stop = ""
    for probe in Probe:
        if stop:
            results.append(ProbeOutcome(probe, Outcome.NOT_TRIED, stop))
            continue
        title = MEANING[probe][0]
        print(f"testing: {title}", file=sys.stderr, flush=True)
        result = run_probe(probe, device, timeout_s)
        results.append(result)
        if probe is Probe.DEVICE:
            device = result.device or device
            stop = "" if result.works else "torch cannot use the device"
        elif result.outcome is Outcome.HANGS and probe is not Probe.LOADER and not device.startswith("cpu"):
            stop = f"after the hang of: {title}"
    return results


def run_probe(probe: Probe, device: str, timeout_s: float, command: Sequence[str] | None = None) -> ProbeOutcome:
    """Run one probe in a child process, whose command tests replace."""
    work = [sys.executable, "-m", "yolo_lightning.commands.doctor.probe_work", probe, device, f"{timeout_s:g}"]
    try:
        return judge_end(probe, run_child(command or work, timeout_s), timeout_s)
    except OSError as error:
        return ProbeOutcome(probe, Outcome.FAILS, f"the child process could not be started: {error}")


def judge_end(probe: Probe, ended: Ended, timeout_s: float) -> ProbeOutcome:
    """Return the outcome that the end of a child process means."""
    operation, errors = last_operation(ended.err)
    place = f" in: {operation}" if operation else ""
    if ended.code is None:
        detail = f"no answer after {timeout_s:g} s{place}"
        if ended.killed.survivors:
            detail += f"; cannot be ended, reboot: {ended.killed}"
        return ProbeOutcome(probe, Outcome.HANGS, detail, ended.seconds)
    if ended.signal_name:
        return ProbeOutcome(probe, Outcome.CRASHES, f"{ended.signal_name}{place}", ended.seconds)
    try:
        answer = json.loads(ended.out[-1])
        outcome = Outcome(answer["outcome"])
        detail = str(answer["detail"])
        device = str(answer["device"])
    except (IndexError, KeyError, TypeError, ValueError):
        problem = f"exit code {ended.code}{place}"
        if errors:
            problem += f"; {errors[-1][:240]}"
        return ProbeOutcome(probe, Outcome.FAILS, problem, ended.seconds)
    return ProbeOutcome(probe, outcome, detail, ended.seconds, device)


def probe_findings(results: Sequence[ProbeOutcome]) -> list[Finding]:
    """Return one finding per result; a failed convolution is bad if the other implementation failed, too."""
    failed = {result.probe for result in results if result.failed}
    convolutions = {Probe.OWN_CONVOLUTION, Probe.CONVOLUTION}
    findings = []
    for result in results:
        title, severity, advice = MEANING[result.probe]
        if not result.failed:
            severity = Severity.OK if result.outcome is Outcome.WORKS else Severity.NOTE
            advice = ""
        elif result.probe in convolutions and convolutions <= failed:
            severity = Severity.BAD
            advice = NO_TRAINING
        summary = str(result.outcome)
        if result.detail:
            summary += f": {result.detail}"
        findings.append(Finding(title, summary, severity, advice))
    return findings
