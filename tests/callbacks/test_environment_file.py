import json
import sys
from pathlib import Path

import pytest
import torch

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
