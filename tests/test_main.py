"""The installed command, as a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

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


def call(folder: Path, *arguments: str, python_path: str = "") -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (python_path, str(REPOSITORY))))
    return subprocess.run(
        [sys.executable, "-m", "yolo_lightning", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


@pytest.mark.whole_run
def test_no_command_uses_the_network(tmp_path: Path, look_alike: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    common = ["--data.root", str(look_alike), "--data.storage.index_root", "index", "--data.image_size", "64"]
    common += ["--trainer.accelerator", "cpu", "--data.loader.num_workers", "1"]
    fit = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--trainer.num_sanity_val_steps", "0"]
    for arguments in (["fit", *fit], ["predict"]):
        result = call(tmp_path, *arguments, *common, python_path=str(tmp_path))
        assert result.returncode == 0, result.stderr
        assert "NETWORK" not in result.stderr
        assert "leaked" not in result.stderr  # nanobind's report, if objects stay frozen to the end
    assert (tmp_path / "runs" / "yolo" / "predictions.json").is_file()
