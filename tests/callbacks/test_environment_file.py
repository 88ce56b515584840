import json
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.callbacks.tiny_training import fit
from yolo_lightning.callbacks import EnvironmentFile
from yolo_lightning.utils.run_files import ENVIRONMENT


def test_a_fit_says_where_it_runs(tmp_path: Path) -> None:
    fit(tmp_path, EnvironmentFile())
    content = json.loads((tmp_path / ENVIRONMENT).read_text())
    assert content["torch"] == str(torch.__version__)
    assert content["python"] == sys.version.split()[0]
    assert content["device"] == "cpu"


def test_disk_that_is_full_does_not_end_the_fit(tmp_path: Path) -> None:
    (tmp_path / ENVIRONMENT).mkdir()
    with pytest.warns(UserWarning, match="could not write"):
        fit(tmp_path, EnvironmentFile())


def test_file_is_written_when_there_is_space_again(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class Empties(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 1:
                (tmp_path / ENVIRONMENT).rmdir()

    (tmp_path / ENVIRONMENT).mkdir()
    fit(tmp_path, Empties(), EnvironmentFile(), epochs=3)
    assert json.loads((tmp_path / ENVIRONMENT).read_text())["device"] == "cpu"
    assert sum("could not write" in str(warning.message) for warning in recwarn) == 1
