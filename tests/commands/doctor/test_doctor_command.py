"""The command `doctor`: exit codes, output, invalid options."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commands.doctor.machines import NAVI, PLAIN
from yolo_lightning.commands.doctor import command as doctor_module
from yolo_lightning.commands.doctor.command import doctor
from yolo_lightning.commands.doctor.inspect_machine import RUN_DISK, SHARED_MEMORY, MachineFacts, TorchBuild
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS
from yolo_lightning.utils.sensors import Capacity

MACHINE = MachineFacts(
    system="Linux",
    processor="a processor",
    cores=8,
    memory=Capacity(1 << 34, 1 << 35),
    swap_bytes=0,
    disks={SHARED_MEMORY: Capacity(0, 1 << 33), RUN_DISK: Capacity(0, 1 << 40)},
    torch=TorchBuild("2.15.0+cu132", cuda="13.2"),
    packages={"lightning": "2.6.6", "torchvision": "0.29.2+cu132", "py-spy": "0.4.3"},
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[dict[Probe, Outcome]]:
    """Replace inspection and probes; the only item contains the outcomes that differ from `works`."""
    outcomes: dict[Probe, Outcome] = {}

    def run_probes(device: str, timeout_s: float) -> list[ProbeOutcome]:
        return [ProbeOutcome(probe, outcomes.get(probe, Outcome.WORKS)) for probe in Probe]

    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run, data: MACHINE)
    monkeypatch.setattr(doctor_module, "run_probes", run_probes)
    return [outcomes]


def test_exit_code_0_without_a_bad_finding(
    tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]
) -> None:
    tried[0][Probe.CONVOLUTION] = Outcome.HANGS
    doctor()
    assert "vendor convolution" in capsys.readouterr().out


def test_exit_code_1_for_a_bad_finding(tried: list[dict[Probe, Outcome]]) -> None:
    tried[0][Probe.MATMUL_FLOAT32] = Outcome.WRONG
    with pytest.raises(SystemExit) as exit_info:
        doctor()
    assert exit_info.value.code == 1


def test_stdout_contains_json_only(tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]) -> None:
    doctor(json=True)
    assert len(json.loads(capsys.readouterr().out)["probes"]) == len(Probe)


def test_probes_can_be_left_out(tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]) -> None:
    tried[0][Probe.MATMUL_FLOAT32] = Outcome.WRONG
    doctor(json=True, probes=False)
    assert json.loads(capsys.readouterr().out)["probes"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:x"}, "--device must be auto, cpu, mps, cuda, xpu, or cuda:N or xpu:N .* got 'cuda:x'"),
        ({"device": "gpu"}, "got 'gpu'"),
        ({"probe_timeout_s": 0.0}, "--probe_timeout_s must be > 0, got 0.0"),
        ({"data_root": "/not/there"}, "--data_root must be an existing folder, got '/not/there'"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        doctor(**options)


def test_interrupt_exits_without_a_traceback(tried: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> list[ProbeOutcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_module, "run_probes", interrupt)
    with pytest.raises(SystemExit) as exit_info:
        doctor()
    assert exit_info.value.code == 130


def test_json_contains_all_parts(
    tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run, data: replace(PLAIN, gpus=(NAVI,)))
    tried[0][Probe.CONVOLUTION] = Outcome.HANGS
    with pytest.raises(SystemExit):  # the torch build is for a CPU only
        doctor(json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "bad"
    assert content["machine"]["gpus"][0]["architecture"] == "gfx1010"
    assert {"torch build", "vendor convolution"} <= {one["check"] for one in content["findings"]}
    assert content["probes"][-1]["outcome"] == "hangs"
    assert content["recommended"]["options"][1]["key"] == "model.convolution.backend"


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
