"""Accelerators and devices of the Trainer, checked without torch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yolo_lightning.commands import trainer_limits
from yolo_lightning.commands.trainer_limits import check_accelerator, check_devices, check_processors, surely_no_gpu
from yolo_lightning.errors import UserError
from yolo_lightning.utils.host import available_cores


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (999, r"at most \d+ with \d+ available cores"),
        ("999", r"at most \d+ with \d+ available cores"),
        ([0, 1], r"auto or the number of processes, >= 1, on a CPU, got \[0, 1\]"),
        (-1, "got -1"),
    ],
)
def test_devices_of_a_cpu_are_processes(devices: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"trainer\.devices must be .*{message}"):
        check_devices(devices, is_cpu=True)
    check_devices(devices, is_cpu=False)
    for accepted in ("auto", "1", available_cores()):
        check_devices(accepted, is_cpu=True)


def test_accelerators_of_the_machine_are_accepted() -> None:
    with pytest.raises(UserError, match=r"trainer\.accelerator must be auto or cpu on this machine, got 'gpu'"):
        check_accelerator("gpu", ())
    check_accelerator("gpu", ["cuda"])
    with pytest.raises(UserError, match="must be auto or cpu or gpu or cuda on this machine, got 'mps'"):
        check_accelerator("mps", ["cuda"])


@pytest.mark.parametrize(("accelerator", "devices"), [("auto", 0), ("gpu", []), ("gpu", 1), ("auto", 999)])
def test_processors_are_refused_before_torch_only_if_there_is_surely_no_gpu(
    accelerator: str, devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"trainer.accelerator": accelerator, "trainer.devices": devices}
    monkeypatch.setattr(trainer_limits, "surely_no_gpu", lambda: True)
    with pytest.raises(UserError, match=r"trainer\.(accelerator|devices) must be auto"):
        check_processors(options | {"trainer.devices": devices if devices != 999 else -1})
    monkeypatch.setattr(trainer_limits, "surely_no_gpu", lambda: False)
    if devices:
        check_processors(options)


@pytest.mark.parametrize(
    ("cuda", "hip", "has_driver", "expected"),
    [
        ("None", "None", True, True),
        ("'13.2'", "None", False, True),
        ("'13.2'", "None", True, False),
        ("None", "'7.1'", False, True),
        ("None", "'7.1'", True, False),
    ],
)
def test_gpu_is_surely_absent_without_its_driver(
    cuda: str, hip: str, has_driver: bool, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: str) -> None:
        if not has_driver:
            raise OSError

    device = tmp_path / "device"
    if has_driver:
        device.touch()
    monkeypatch.setattr(trainer_limits.sys, "platform", "linux")
    monkeypatch.setattr(trainer_limits.ctypes, "CDLL", load)
    monkeypatch.setattr(trainer_limits, "ROCM_DEVICES", (str(device),))
    monkeypatch.setattr(trainer_limits, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert not surely_no_gpu()  # torch has no file of this name
    (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n")
    assert surely_no_gpu() == expected
    (tmp_path / "version.py").write_text(f"build = {cuda}\n")
    assert not surely_no_gpu()
