"""Tests of the start of the fork server before torch is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.commands import early_workers
from yolo_lightning.commands.early_workers import start_early, stated
from yolo_lightning.supervision.trainer import MARKER_VARIABLE

KEY = "data.loader.num_workers"
FORKSERVER = "--data.loader.multiprocessing_context=forkserver"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of threads of the fork servers that were started."""
    numbers: list[int] = []
    monkeypatch.setattr(early_workers, "start_fork_server", lambda threads: numbers.append(threads))
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    return numbers


def test_the_last_source_of_an_option_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(json.dumps({"data": {"loader": {"num_workers": 3}}}))
    second.write_text(json.dumps({"data": {"loader": {"num_workers": 4}}, "model": {"lr0": 0.1}}))
    assert stated([], KEY, "auto") == "auto"
    assert stated(["--config", str(first)], KEY, "auto") == "3"
    assert stated([f"--config={first}", "-c", str(second)], KEY, "auto") == "4"
    assert stated([f"--{KEY}", "5", "--config", str(first)], KEY, "auto") == "5"
    assert stated([f"--{KEY}=5", f"--{KEY}=Auto"], KEY, "1") == "auto"
    assert stated(["--config", str(tmp_path / "missing.yaml"), f"--{KEY}"], KEY, "auto") == ""


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
def test_fork_server_starts_early(command: str, started: list[int]) -> None:
    start_early([command, FORKSERVER])
    assert started == [1]


def test_demo_starts_its_fork_server_early(started: list[int]) -> None:
    start_early(["fit", "--config", str(REPOSITORY / "configs" / "demo.yaml")])
    assert started == [1]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fit"],
        ["predict", FORKSERVER],
        ["fit", "--data.loader.multiprocessing_context=spawn"],
        ["fit", FORKSERVER, "--data.loader.num_workers", "0"],
        ["fit", FORKSERVER, "--data.loader.worker_threads", "2"],
        ["fit", FORKSERVER, "--supervision.enabled", "true"],
        ["fit", "--config", str(REPOSITORY / "configs" / "ltdv2.yaml")],
    ],
)
def test_no_fork_server_is_started(words: list[str], started: list[int]) -> None:
    start_early(words)
    assert started == []


def test_supervised_training_process_starts_it(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARKER_VARIABLE, "token")
    start_early(["fit", FORKSERVER, "--supervision.enabled", "true"])
    assert started == [1]


def test_the_module_loads_neither_torch_nor_lightning() -> None:
    code = "import sys, yolo_lightning.commands.early_workers; print({'torch', 'lightning'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
