"""The installed command, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.helpers.program import COMMAND, run_python

NO_NETWORK = """
import socket, sys

def refuse(*arguments, **keywords):
    print("NETWORK", arguments, file=sys.stderr, flush=True)
    raise OSError("the network was used")

class LocalOnly(socket.socket):
    def connect(self, address):
        return super().connect(address) if self.family == socket.AF_UNIX else refuse(address)

    def connect_ex(self, address):
        return super().connect_ex(address) if self.family == socket.AF_UNIX else refuse(address)

socket.socket = LocalOnly
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""
"""A sitecustomize module: loader workers, which are new processes, get it too."""


@pytest.mark.whole_run
def test_no_command_uses_the_network(tmp_path: Path, look_alike: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    common = ["--data.root", str(look_alike), "--data.storage.index_root", "index", "--data.image_size", "64"]
    common += ["--trainer.accelerator", "cpu", "--data.loader.num_workers", "1"]
    fit = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.num_sanity_val_steps", "0"]
    for arguments in (["fit", *fit], ["predict"]):
        result = run_python(tmp_path, *COMMAND, *arguments, *common)
        assert result.returncode == 0, result.stderr
        assert "NETWORK" not in result.stderr
        assert "leaked" not in result.stderr  # nanobind's report, if objects stay frozen to the end
    assert (tmp_path / "runs" / "yolo" / "predictions.json").is_file()


def test_console_script_finds_modules_in_the_working_directory(tmp_path: Path) -> None:
    module = "from lightning.pytorch import Callback\n\n\nclass Mine(Callback):\n    pass\n"
    (tmp_path / "of_user.py").write_text(module)
    script = tmp_path / "bin" / "yolo-lightning"
    script.parent.mkdir()
    script.write_text("from yolo_lightning.__main__ import main\n\nmain()\n")
    result = subprocess.run(
        [sys.executable, script, "fit", "--trainer.callbacks+", "of_user.Mine", "--print_config"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "of_user.Mine" in result.stdout


@pytest.mark.whole_run
def test_fit_of_one_process_is_complete_with_the_rank_of_another_program(
    tmp_path: Path, look_alike: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "elsewhere"}.items():
        monkeypatch.setenv(name, value)
    options = ["--data.root", str(look_alike), "--data.image_size", "64", "--data.loader.num_workers", "0"]
    options += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1"]
    result = run_python(tmp_path, *COMMAND, "fit", *options)
    assert result.returncode == 0, result.stderr
    assert "RANK=1 LOCAL_RANK=1 in the environment has no effect" in result.stderr
    assert "run folder: runs/yolo\n" in result.stderr
    for name in ("metrics.csv", "environment.json", "tensorboard"):
        assert (tmp_path / "runs" / "yolo" / name).exists()


def test_deleted_working_folder_is_named(tmp_path: Path) -> None:
    script = 'rmdir "$PWD" && exec "$0" -m yolo_lightning fit'
    result = subprocess.run(
        ["sh", "-c", script, sys.executable],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stderr == "error: the working folder has been deleted: change into a folder that exists\n"
    assert result.returncode == 2
