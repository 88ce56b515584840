"""Set-up keeps an installed torch, and without a GPU prefers CPU builds."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.conftest import REPOSITORY

TESTED = ["torch==2.15.0", "torchvision==0.29.2", "rich==15.0.0"]


@pytest.fixture
def set_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up", REPOSITORY / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Return a folder that looks like a virtual environment of this interpreter."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path / "env"


@pytest.fixture
def constraints(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the constraints that pip would have received; pip is not called."""
    received: list[str] = []
    monkeypatch.setattr(set_up, "install_packages", lambda python, constraints: received.extend(constraints))
    return received


@pytest.fixture
def index(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return the versions that pip finds, as the test sets them, on a Linux machine without a GPU."""
    versions: dict[str, list[str]] = {"torch": ["2.15.0", "2.13.0"], "torchvision": ["0.29.2", "0.28.0"]}
    monkeypatch.setattr(set_up, "available_versions", lambda python, name: versions[name])
    monkeypatch.setattr(set_up, "find_gpu", lambda: None)
    monkeypatch.setattr(set_up.sys, "platform", "linux")
    return versions


def test_installed_torch_is_pinned(
    set_up: ModuleType,
    environment: Path,
    constraints: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(set_up, "installed", lambda python: ["torch==2.9.1+rocm6.4", "torchvision==0.24.1+rocm6.4"])
    set_up.install(environment)
    assert constraints == ["torch==2.9.1+rocm6.4", "torchvision==0.24.1+rocm6.4"]
    assert "keeping torch==2.9.1+rocm6.4" in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_environment_without_torch_gets_the_tested_versions_once(
    set_up: ModuleType, environment: Path, constraints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "installed", lambda python: [])
    set_up.install(environment)
    first = list(constraints)
    assert {"torch", "ultralytics"} <= {line.partition("==")[0] for line in first}
    set_up.install(environment)
    assert constraints == first


def test_cpu_build_needs_one_of_torchvision_as_well(set_up: ModuleType, index: dict[str, list[str]]) -> None:
    """With torchvision's standard build, `import torchvision` fails beside a CPU build of torch."""
    index["torch"].append("2.13.0+cpu")
    choice = set_up.choose_torch(Path(sys.executable), TESTED)
    assert choice.constraints == TESTED
    assert "no CPU build of torchvision" in choice.line
    assert "GB" in choice.line


def test_tested_cpu_builds_are_preferred(set_up: ModuleType, index: dict[str, list[str]]) -> None:
    index["torch"] = ["2.16.0+cpu", "2.15.0+cpu", "2.15.0"]
    index["torchvision"] = ["0.30.0+cpu", "0.29.2+cpu"]
    choice = set_up.choose_torch(Path(sys.executable), TESTED)
    assert choice.constraints == ["rich==15.0.0", "torch==2.15.0+cpu", "torchvision==0.29.2+cpu"]
    assert "CPU build" in choice.line
    assert "GB" in choice.line


def test_gpu_gets_no_cpu_build_if_there_is_another(
    set_up: ModuleType, index: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    index["torch"] = ["2.15.0+cpu", "2.15.0"]
    index["torchvision"] = ["0.29.2+cpu"]
    monkeypatch.setattr(set_up, "find_gpu", lambda: "AMD Radeon RX 5600 XT")
    choice = set_up.choose_torch(Path(sys.executable), TESTED)
    assert choice.constraints == [*TESTED, "torch!=2.15.0+cpu"], "the only build of torchvision is not excluded"
    assert "AMD Radeon RX 5600 XT" in choice.line
    assert "ROCm build first" in choice.line


def write_wheel(folder: Path, name: str, version: str, requirement: str = "") -> None:
    """Write a wheel without files."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requirement:
        metadata += f"Requires-Dist: {requirement}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        information = f"{name}-{version}.dist-info"
        wheel.writestr(f"{information}/METADATA", metadata)
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.mark.whole_run
def test_pip_selects_cpu_builds_that_belong_together(
    set_up: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pip finds them where its environment variables say; the newest of each do not belong together."""
    for version in ("2.15.0", "2.14.0+cpu", "2.13.0", "2.13.0+cpu", "2.13.0+cu130"):
        write_wheel(tmp_path, "torch", version)
    write_wheel(tmp_path, "torchvision", "0.29.2", "torch>=2.14.0")
    for version in ("0.28.0", "0.28.0+cpu"):
        write_wheel(tmp_path, "torchvision", version, "torch==2.13.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(set_up, "find_gpu", lambda: None)
    choice = set_up.choose_torch(Path(sys.executable), TESTED)
    (tmp_path / "constraints.txt").write_text("\n".join(choice.constraints) + "\n")

    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command += ["--constraint", str(tmp_path / "constraints.txt"), "torch>=2.6", "torchvision>=0.21"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    versions = {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}
    assert versions == {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}


def test_installed_versions_are_read_from_the_environment(set_up: ModuleType) -> None:
    versions = dict(line.split("==") for line in set_up.installed(Path(sys.executable)))
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert "torchvision" in versions


def test_check_names_what_is_missing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-I", "-S", str(REPOSITORY / "scripts" / "set_up.py"), "check"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert result.returncode == 1
    assert "lacks torch, torchvision, lightning" in result.stdout
    assert "make install VENV=" in result.stdout


def test_constraints_name_no_registry() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert all(line.count("==") == 1 and "/" not in line for line in lines)


def test_minimum_versions_are_those_of_the_project(set_up: ModuleType) -> None:
    requirements = set(set_up.minimum())
    assert {"torch==2.6", "lightning==2.6.4", "jsonargparse==4.39", "ultralytics==8.4.190"} <= requirements
    assert {"pytest==8", "nbclient==0.10", "onnx==1.17"} <= requirements, "packages of the extra `dev`"
