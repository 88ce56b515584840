"""The doctor's command: exit codes, output, options that are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from yolo_lightning.commands.doctor import command as doctor_module
from yolo_lightning.commands.doctor.command import doctor
from yolo_lightning.commands.doctor.machine import FileSystem, MachineFacts, Memory, TorchBuild
from yolo_lightning.commands.doctor.probes import Outcome, Probe, ProbeOutcome

MACHINE = MachineFacts(
    system="Linux",
    processor="a processor",
    cores=8,
    memory=Memory(1 << 35, 1 << 34, 0),
    shared_memory=FileSystem("/dev/shm", 1 << 33, 1 << 33),
    run_disk=FileSystem("runs", 1 << 40, 1 << 40),
    data_disk=None,
    torch=TorchBuild("2.15.0+cu132", cuda="13.2"),
    packages={"lightning": "2.6.6", "torchvision": "0.29.2+cu132", "py-spy": "0.4.3"},
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[dict[Probe, Outcome]]:
    """Outcomes that differ from `works`, in its only item; no machine is looked at."""
    outcomes: dict[Probe, Outcome] = {}

    def run_probes(device: str, timeout_s: float, say: Callable[[str], None]) -> list[ProbeOutcome]:
        say("something")
        return [ProbeOutcome(probe, outcomes.get(probe, Outcome.WORKS)) for probe in Probe]

    monkeypatch.setattr(doctor_module, "inspect_machine", lambda run, data: MACHINE)
    monkeypatch.setattr(doctor_module, "run_probes", run_probes)
    return [outcomes]


def test_nothing_bad_is_exit_code_0(tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]) -> None:
    tried[0][Probe.CONVOLUTION] = Outcome.HANGS
    doctor()
    shown = capsys.readouterr()
    assert "vendor convolution" in shown.out
    assert "testing: something" in shown.err


def test_something_bad_is_exit_code_1(tried: list[dict[Probe, Outcome]]) -> None:
    tried[0][Probe.MATMUL_FLOAT32] = Outcome.WRONG
    with pytest.raises(SystemExit) as exit_info:
        doctor()
    assert exit_info.value.code == 1


def test_json_is_all_that_is_on_the_output(
    tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(json=True)
    assert len(json.loads(capsys.readouterr().out)["probes"]) == len(Probe)


def test_probes_can_be_left_out(tried: list[dict[Probe, Outcome]], capsys: pytest.CaptureFixture[str]) -> None:
    tried[0][Probe.MATMUL_FLOAT32] = Outcome.WRONG
    doctor(json=True, probes=False)
    assert json.loads(capsys.readouterr().out)["probes"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:x"}, "--device must be auto, cpu, cuda or cuda:N .* got 'cuda:x'"),
        ({"device": "gpu"}, "got 'gpu'"),
        ({"probe_timeout_s": 0.0}, "--probe_timeout_s must be > 0, got 0.0"),
        ({"data_root": "/not/there"}, "--data_root must be an existing folder, got '/not/there'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        doctor(**options)


def test_interrupting_it_is_no_traceback(tried: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> list[ProbeOutcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_module, "run_probes", interrupt)
    with pytest.raises(SystemExit) as exit_info:
        doctor()
    assert exit_info.value.code == 130
