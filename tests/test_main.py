"""The installed command, as a process."""

from pathlib import Path

import pytest

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
