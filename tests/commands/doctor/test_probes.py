"""Outcomes of probes whose child processes exit, crash, hang or print nonsense."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.commands.doctor.machines import results
from yolo_lightning.commands.doctor import probes
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity, worst
from yolo_lightning.commands.doctor.probe_work import WORK, exact_products, judge_error, layer, missing_code
from yolo_lightning.commands.doctor.probes import (
    MEANING,
    Outcome,
    Probe,
    ProbeOutcome,
    judge_end,
    probe_findings,
    run_probe,
    run_probes,
)
from yolo_lightning.conv import VendorFreeBatchNorm2d
from yolo_lightning.model import native_trial as trial
from yolo_lightning.supervision.child_process import Ended, run_child
from yolo_lightning.supervision.kill import Killed
from yolo_lightning.utils.process_identity import Process, read_process

ANSWER = '{"outcome": "works", "detail": "fine", "device": "cuda"}'


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def is_gone(pid: int) -> bool:
    process = read_process(pid)
    return process is None or process.is_gone


def try_it(code: str, timeout_s: float = 20.0) -> ProbeOutcome:
    return run_probe(Probe.CONVOLUTION, "cpu", timeout_s, python(code))


@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        (f"print('noise'); print('{ANSWER}')", Outcome.WORKS, "fine"),
        (
            "import os, sys; print('probe: layer 3', file=sys.stderr, flush=True); os.kill(os.getpid(), 11)",
            Outcome.CRASHES,
            "SIGSEGV in: layer 3",
        ),
        (
            "import sys; print('no such kernel', file=sys.stderr); sys.exit(3)",
            Outcome.FAILS,
            "exit code 3; no such kernel",
        ),
        ("print('hello')", Outcome.FAILS, "exit code 0"),
        ("pass", Outcome.FAILS, "exit code 0"),
    ],
)
def test_end_of_the_child_is_the_outcome(code: str, outcome: Outcome, detail: str) -> None:
    result = try_it(code)
    assert (result.outcome, result.detail) == (outcome, detail)
    assert result.device == ("cuda" if outcome is Outcome.WORKS else "")


def test_a_child_that_cannot_be_started_is_a_failure() -> None:
    assert run_probe(Probe.DEVICE, "cpu", 5, ["/not/there"]).outcome is Outcome.FAILS


def test_a_hanging_child_is_killed_with_its_descendants(tmp_path: Path) -> None:
    pid_file = tmp_path / "grandchild"
    began_s = time.monotonic()
    result = try_it(
        "import subprocess, sys, time\n"
        "print('probe: a product', file=sys.stderr, flush=True)\n"
        "one = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(one.pid))\n"
        "time.sleep(600)",
        timeout_s=1.5,
    )
    assert (result.outcome, result.detail) == (Outcome.HANGS, "no answer after 1.5 s in: a product")
    assert time.monotonic() - began_s < 30
    assert is_gone(int(pid_file.read_text()))


def test_descendants_of_an_exited_child_are_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "grandchild"
    code = (
        "import subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(one.pid))"
    )
    assert run_child(python(code), 20).code == 0
    assert is_gone(int(pid_file.read_text()))


def test_a_process_that_survives_sigkill_needs_a_reboot() -> None:
    ended = Ended(None, 9.0, err=("probe: copy",), killed=Killed(survivors={Process(77, "", "D"): "python, state D"}))
    detail = judge_end(Probe.CONVOLUTION, ended, 9.0).detail
    assert detail == "no answer after 9 s in: copy; cannot be ended, reboot: process 77: python, state D"


class Script:
    """Replacement of `run_probe`: every probe works except the given ones; records each call."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.outcomes = outcomes
        self.calls: list[tuple[Probe, str]] = []

    def __call__(self, probe: Probe, device: str, timeout_s: float) -> ProbeOutcome:
        self.calls.append((probe, device))
        device = "cuda" if probe is Probe.DEVICE else ""
        return ProbeOutcome(probe, self.outcomes.get(probe, Outcome.WORKS), device=device)


def run_script(monkeypatch: pytest.MonkeyPatch, **outcomes: Outcome) -> tuple[Script, list[ProbeOutcome]]:
    script = Script(**outcomes)
    monkeypatch.setattr(probes, "run_probe", script)
    return script, run_probes("auto", 10.0)


def test_all_probes_run_on_the_device_that_torch_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, probe_outcomes = run_script(monkeypatch)
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0]) == ("", "testing: packages load")
    assert [probe for probe, _ in script.calls] == list(Probe) == [result.probe for result in probe_outcomes]
    assert {device for _, device in script.calls[2:]} == {"cuda"}
    assert list(Probe)[-1] is Probe.CONVOLUTION, "the probe that is known to hang GPUs is last"


@pytest.mark.parametrize(
    ("outcomes", "last", "reason"),
    [
        ({"matmul_float16": Outcome.HANGS}, Probe.MATMUL_FLOAT16, "after the hang of: float16 products"),
        ({"device": Outcome.CRASHES}, Probe.DEVICE, "torch cannot use the device"),
        ({"matmul_float16": Outcome.CRASHES, "loader": Outcome.HANGS}, Probe.CONVOLUTION, ""),
    ],
)
def test_no_probe_runs_after_a_hang_of_the_gpu_or_without_a_device(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, Outcome], last: Probe, reason: str
) -> None:
    script, probe_outcomes = run_script(monkeypatch, **outcomes)
    assert script.calls[-1][0] is last
    not_tried = probe_outcomes[list(Probe).index(last) + 1 :]
    assert [(entry.outcome, entry.detail) for entry in not_tried] == [(Outcome.NOT_TRIED, reason)] * len(not_tried)


def of(probe: Probe, findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.check == MEANING[probe][0])


@pytest.mark.parametrize(
    ("vendor", "vendor_free", "severity"),
    [
        (Outcome.HANGS, Outcome.WORKS, Severity.WARNING),
        (Outcome.NOT_TRIED, Outcome.HANGS, Severity.WARNING),
        (Outcome.HANGS, Outcome.WRONG, Severity.BAD),
    ],
)
def test_failure_of_both_convolutions_is_bad(vendor: Outcome, vendor_free: Outcome, severity: Severity) -> None:
    findings = probe_findings(results(convolution=vendor, own_convolution=vendor_free))
    assert worst(findings) is severity


@pytest.mark.parametrize("probe", list(Probe))
def test_severity_and_advice_of_each_probe(probe: Probe) -> None:
    finding = of(probe, probe_findings(results(**{probe: Outcome.FAILS})))
    assert finding.verdict is MEANING[probe][1]
    assert finding.advice
    assert of(probe, probe_findings(results(**{probe: Outcome.SLOWER}))).verdict is Severity.NOTE
    assert of(probe, probe_findings(results())).verdict is Severity.OK


@pytest.mark.parametrize(("error", "outcome"), [(0.009, "WORKS"), (0.011, "WRONG"), (float("nan"), "WRONG")])
def test_errors_are_compared_with_the_tolerance(error: float, outcome: str) -> None:
    assert judge_error(error, 0.01).outcome is Outcome[outcome]


def test_wrong_layers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CASES", (trial.ProbeCase(4, 6, 3, 1, 12),))
    assert layer(Probe.OWN_CONVOLUTION, "cpu", 10.0).outcome is Outcome.WORKS
    normalize = VendorFreeBatchNorm2d.forward

    def off_by_one_channel(self: VendorFreeBatchNorm2d, input: torch.Tensor) -> torch.Tensor:
        output = normalize(self, input)
        return output.roll(1, dims=1) if input.dtype == torch.float32 else output

    monkeypatch.setattr(VendorFreeBatchNorm2d, "forward", off_by_one_channel)
    assert layer(Probe.OWN_CONVOLUTION, "cpu", 10.0).outcome is Outcome.WRONG


@pytest.mark.parametrize("probe", [Probe.DEVICE, *(pytest.param(probe, marks=pytest.mark.slow) for probe in Probe)])
def test_every_probe_works_on_this_cpu(probe: Probe) -> None:
    result = run_probe(probe, "cpu", 120)
    assert result.works, result


@pytest.mark.parametrize(
    ("architecture", "built", "has"),
    [
        ("gfx1010", ["gfx1010", "gfx1030"], True),
        ("gfx1010", ["gfx1030"], False),
        ("gfx1010:xnack-", ["gfx1010"], True),
        ("gfx1012", ["gfx10-1-generic"], True),
        ("gfx1030", ["gfx10-1-generic"], False),
        ("sm_90", ["sm_90a"], True),
        ("sm_89", ["sm_80", "sm_90"], True),
        ("sm_75", ["sm_80", "compute_80"], False),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_120", ["sm_90"], False),
    ],
)
def test_code_of_a_torch_build_for_a_gpu(architecture: str, built: list[str], has: bool) -> None:
    assert (missing_code(architecture, built) == "") is has
    assert missing_code(architecture, []) == "", "unknown"


def test_a_device_without_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(name="a card", gcnArchName="gfx1010:xnack-", major=10, minor=1)
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx1030"])

    def arange(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("HIP error: invalid device function\nmore")

    monkeypatch.setattr(torch, "arange", arange)
    answer = WORK[Probe.DEVICE](Probe.DEVICE, "cuda", 1.0)
    assert answer.outcome is Outcome.FAILS
    assert answer.detail == "HIP error: invalid device function; torch contains code for gfx1030, but not for gfx1010"


def test_a_wrong_row_of_a_large_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right_product = torch.matmul

    def wrong_product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        result = right_product(first, second)
        if first.dtype is torch.float32 and len(first) > 1 << 19:
            result[1 << 19 :] = 0
        return result

    monkeypatch.setattr(torch, "matmul", wrong_product)
    answer = exact_products(Probe.MATMUL_EXACT, "cpu", 60)
    assert answer.outcome is Outcome.WRONG
    assert "of 528384 rows of a product differ, first row 5242" in answer.detail


def test_two_unequal_runs_of_a_product_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right_product = torch.matmul
    calls: list[int] = []

    def unstable_product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        calls.append(len(first))
        return right_product(first, second) + (len(calls) == 4)

    monkeypatch.setattr(torch, "matmul", unstable_product)
    answer = exact_products(Probe.MATMUL_EXACT, "cpu", 60)
    assert (answer.outcome, answer.detail) == (Outcome.WRONG, "two runs of one product differ")
