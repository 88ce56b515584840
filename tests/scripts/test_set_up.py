"""Set-up keeps an installed torch."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import REPOSITORY


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
    held: list[str] = []

    def pretend(command: list[str], **options: Any) -> None:
        held.extend(Path(command[command.index("--constraint") + 1]).read_text().split())

    monkeypatch.setattr(set_up.subprocess, "run", pretend)
    return held


def test_installed_torch_is_pinned(
    set_up: ModuleType, environment: Path, constraints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "installed", lambda python: ["torch==2.9.1+rocm6.4", "torchvision==0.24.1+rocm6.4"])
    set_up.install(environment)
    assert constraints == ["torch==2.9.1+rocm6.4", "torchvision==0.24.1+rocm6.4"]


def test_environment_without_torch_gets_the_tested_versions_once(
    set_up: ModuleType, environment: Path, constraints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "installed", lambda python: [])
    set_up.install(environment)
    first = list(constraints)
    assert {"torch", "ultralytics"} <= {line.partition("==")[0] for line in first}
    set_up.install(environment)
    assert constraints == first


def test_installed_versions_are_read_from_the_environment(set_up: ModuleType) -> None:
    found = dict(line.split("==") for line in set_up.installed(Path(sys.executable)))
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert "torchvision" in found


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
    found = set(set_up.minimum())
    assert {"torch==2.6", "lightning==2.6.4", "jsonargparse==4.39", "ultralytics==8.4.190"} <= found
    assert {"pytest==8", "nbclient==0.10", "onnx==1.17"} <= found, "packages of the extra `dev`"
