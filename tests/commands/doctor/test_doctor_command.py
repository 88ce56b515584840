"""The command `doctor`: exit codes, table, JSON, invalid options."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.commands.doctor.machines import NAVI, PLAIN, ROCM, results
from yolo_lightning.commands.doctor import command as doctor_module
from yolo_lightning.commands.doctor.command import doctor, show_findings
from yolo_lightning.commands.doctor.machine_findings import Finding, Severity
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS

AMD = replace(PLAIN, gpus=(NAVI,), torch=ROCM, kfd_opens=True, environment={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    """Replace inspection and probes; contains the outcomes that differ from `works`."""
    outcomes: dict[str, Outcome] = {}
    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run: PLAIN)
    monkeypatch.setattr(doctor_module, "run_probes", lambda device, timeout_s: results("cpu", **outcomes))
    return outcomes


def test_exit_code_1_for_a_bad_finding_only(tried: dict[str, Outcome], capsys: pytest.CaptureFixture[str]) -> None:
    tried[Probe.CONVOLUTION] = Outcome.HANGS
    doctor()
    assert "vendor convolution" in capsys.readouterr().out
    tried[Probe.MATMUL_FLOAT32] = Outcome.WRONG
    doctor(probes=False)
    with pytest.raises(SystemExit, match="1"):
        doctor()


@pytest.mark.parametrize("columns", [80, 120])
def test_report_fits_the_terminal(
    tried: dict[str, Outcome], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried[Probe.CONVOLUTION] = Outcome.HANGS
    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run: AMD)
    monkeypatch.setattr(doctor_module, "run_probes", lambda device, timeout_s: results(**tried))
    monkeypatch.setattr(doctor_module, "wide_console", lambda: Console(width=columns))
    doctor()
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    for word in (
        "[Radeon RX 5600 XT]",
        "vendor convolution",
        "hangs",
        "model.convolution.backend: gemm",
        "unset it",
    ):
        assert word in text


def test_json_contains_all_parts_and_nothing_else_is_printed(
    tried: dict[str, Outcome], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run: replace(PLAIN, gpus=(NAVI,)))
    tried[Probe.CONVOLUTION] = Outcome.HANGS
    with pytest.raises(SystemExit):  # the torch build is for a CPU only
        doctor(json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "bad"
    assert content["machine"]["gpus"][0]["architecture"] == "gfx1010"
    assert {"torch build", "vendor convolution"} <= {finding["check"] for finding in content["findings"]}
    assert [probe["outcome"] for probe in content["probes"]] == ["works"] * (len(Probe) - 1) + ["hangs"]


def test_brackets_are_printed_literally_and_the_highest_severity_is_counted_first() -> None:
    verdicts = [Severity.OK, Severity.BAD, Severity.OK, Severity.NOTE]
    file = io.StringIO()
    findings = [Finding("[bold]check", "[red]found[/red]", verdict, "[dim]do") for verdict in verdicts]
    show_findings(Console(file=file, width=80), findings)
    for word in ("[bold]check", "[red]found[/red]", "[dim]do", "bad: 1, note: 1, ok: 2"):
        assert word in file.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:x"}, "device must be one of auto, cpu, cuda, cuda:1, xpu, mps, got 'cuda:x'"),
        ({"probe_timeout_s": 0.0}, "--probe_timeout_s must be > 0, got 0.0"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        doctor(**options)


def test_interrupt_exits_without_a_traceback(tried: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> list[ProbeOutcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_module, "run_probes", interrupt)
    with pytest.raises(SystemExit, match="130"):
        doctor()


def test_stored_results_of_native_convolutions_are_deleted_on_request(
    tried: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "yolo_lightning" / CONVOLUTION_VERDICTS
    file.parent.mkdir()
    file.write_text("{")
    for _ in range(2):
        doctor(retry=True)
        assert not file.exists()
