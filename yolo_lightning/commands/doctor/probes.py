"""What may hang or crash, each tried in a child of its own, and what the outcome means."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from yolo_lightning.commands.doctor.child import Ended, run_child
from yolo_lightning.commands.doctor.finding import Finding, Severity

PHASE = "probe: "
"""Begins each line on stderr that says what is done next."""
SHOWN_CHARACTERS = 240


class Outcome(StrEnum):
    """How a probe ended."""

    WORKS = "works"
    SLOWER = "is slower"
    WRONG = "is wrong"
    FAILS = "fails"
    CRASHES = "crashes"
    HANGS = "hangs"
    NOT_TRIED = "not tried"


class Probe(StrEnum):
    """What is tried, in this order: what may hang the card comes last."""

    PACKAGES = "packages"
    DEVICE = "device"
    LOADER = "loader"
    MATMUL_FLOAT32 = "matmul_float32"
    MATMUL_FLOAT16 = "matmul_float16"
    MATMUL_BFLOAT16 = "matmul_bfloat16"
    OWN_CONVOLUTION = "own_convolution"
    BATCH_NORM = "batch_norm"
    CONVOLUTION = "convolution"


TITLES = {
    Probe.PACKAGES: "packages load",
    Probe.DEVICE: "torch's device",
    Probe.LOADER: "loader, 2 workers",
    Probe.MATMUL_FLOAT32: "float32 products",
    Probe.MATMUL_FLOAT16: "float16 products",
    Probe.MATMUL_BFLOAT16: "bfloat16 products",
    Probe.OWN_CONVOLUTION: "own convolution",
    Probe.BATCH_NORM: "vendor BatchNorm",
    Probe.CONVOLUTION: "vendor convolution",
}

SEVERITY = {
    Probe.PACKAGES: Severity.BAD,
    Probe.DEVICE: Severity.BAD,
    Probe.LOADER: Severity.BAD,
    Probe.MATMUL_FLOAT32: Severity.BAD,
    # Precisions that nothing uses unless it is told to.
    Probe.MATMUL_FLOAT16: Severity.NOTE,
    Probe.MATMUL_BFLOAT16: Severity.NOTE,
    Probe.OWN_CONVOLUTION: Severity.WARNING,
    # What this program does without.
    Probe.BATCH_NORM: Severity.WARNING,
    Probe.CONVOLUTION: Severity.WARNING,
}
"""What it means if it does not work, taken alone."""


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """What a probe found.

    Attributes:
        probe: What was tried.
        outcome: How it ended.
        detail: The evidence, in a few words.
        seconds: That it took.
        facts: What else it found: for the device its `name`, `device` and `architectures`.
    """

    probe: Probe
    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether it can be used, if slowly."""
        return self.outcome in (Outcome.WORKS, Outcome.SLOWER)

    @property
    def failed(self) -> bool:
        """Whether it was tried and cannot be used."""
        return not self.works and self.outcome is not Outcome.NOT_TRIED


def run_probes(device: str, timeout_s: float, say: Callable[[str], None]) -> list[ProbeOutcome]:
    """Try everything, one after another; after a hang of the card nothing more is tried on it.

    Args:
        device: As torch calls it, or auto: the GPU that torch sees, else the CPU.
        timeout_s: Seconds that each may take, the start of its process included.
        say: Told what is tried now.
    """
    results: list[ProbeOutcome] = []
    reason = ""
    for probe in Probe:
        if reason:
            results.append(ProbeOutcome(probe, Outcome.NOT_TRIED, reason))
            continue
        say(TITLES[probe])
        result = run_probe(probe, device, timeout_s)
        results.append(result)
        if probe is Probe.DEVICE:
            device = result.facts.get("device", device)
        reason = why_stop(result, device)
    return results


def why_stop(result: ProbeOutcome, device: str) -> str:
    """Why nothing more should be tried after a result; empty where there is no reason."""
    if result.probe is Probe.DEVICE and not result.works:
        return "torch does not get as far as the device"
    on_card = result.probe is not Probe.LOADER and not device.startswith("cpu")
    if result.outcome is Outcome.HANGS and on_card:
        return f"after the hang of: {TITLES[result.probe]}"
    return ""


def run_probe(probe: Probe, device: str, timeout_s: float, command: Sequence[str] | None = None) -> ProbeOutcome:
    """Try one thing.

    Args:
        probe: What to try.
        device: As torch calls it, or auto.
        timeout_s: Seconds that it may take.
        command: What to run as the child instead; for tests.
    """
    words = [sys.executable, "-m", "yolo_lightning.commands.doctor", "probe", probe, device, f"{timeout_s:g}"]
    try:
        return judge(probe, run_child(words if command is None else command, timeout_s), timeout_s)
    except OSError as error:
        return ProbeOutcome(probe, Outcome.FAILS, f"the child process could not be started: {error}")


def judge(probe: Probe, ended: Ended, timeout_s: float) -> ProbeOutcome:
    """What the end of a child means. Pure."""
    phases = [line.removeprefix(PHASE) for line in ended.err if line.startswith(PHASE)]
    said = [line for line in ended.err if not line.startswith(PHASE)]
    where = f" in: {phases[-1]}" if phases else ""
    last = f"; {said[-1][:SHOWN_CHARACTERS]}" if said else ""
    if ended.code is None:
        stuck = "; ".join(f"process {pid} cannot be ended ({where})" for pid, where in ended.survivors.items())
        detail = f"no answer after {timeout_s:g} s{where}" + (f"; {stuck}: reboot" if stuck else "")
        return ProbeOutcome(probe, Outcome.HANGS, detail, ended.seconds)
    if ended.signal_name:
        return ProbeOutcome(probe, Outcome.CRASHES, f"{ended.signal_name}{where}", ended.seconds)
    try:
        answer = json.loads(ended.out[-1])
        outcome, detail, facts = Outcome(answer["outcome"]), str(answer["detail"]), dict(answer["facts"])
    except (IndexError, KeyError, TypeError, ValueError):
        return ProbeOutcome(probe, Outcome.FAILS, f"exit code {ended.code}{where}{last}", ended.seconds)
    return ProbeOutcome(probe, outcome, detail, ended.seconds, facts)


def probe_findings(results: Sequence[ProbeOutcome]) -> list[Finding]:
    """What the outcomes mean. Pure."""
    by_probe = {result.probe: result for result in results}
    return [_finding(result, by_probe) for result in results]


def _finding(result: ProbeOutcome, results: dict[Probe, ProbeOutcome]) -> Finding:
    title = TITLES[result.probe]
    found = f"{result.outcome}" + (f": {result.detail}" if result.detail else "")
    if result.outcome is Outcome.WORKS:
        return Finding(title, found, Severity.OK)
    if result.outcome in (Outcome.SLOWER, Outcome.NOT_TRIED):
        return Finding(title, found, Severity.NOTE)
    severity = SEVERITY[result.probe]
    if result.probe in (Probe.OWN_CONVOLUTION, Probe.CONVOLUTION):
        other = Probe.CONVOLUTION if result.probe is Probe.OWN_CONVOLUTION else Probe.OWN_CONVOLUTION
        if other in results and results[other].failed:
            severity = Severity.BAD
    return Finding(title, found, severity, _advice(result.probe, severity))


def _advice(probe: Probe, severity: Severity) -> str:
    if probe is Probe.LOADER:
        return "data.loader.workers: 0 trains without workers; more of /dev/shm or memory may help"
    if severity is Severity.BAD:
        return "training cannot work with this; see the finding on torch's build first"
    if probe in (Probe.CONVOLUTION, Probe.BATCH_NORM):
        return "model.conv: gemm does without it"
    if probe is Probe.OWN_CONVOLUTION:
        return "model.conv: native does without it"
    return "keep trainer.precision: 32-true"
