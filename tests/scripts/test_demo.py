"""The end of the demo: five lines of scores, the files, three next commands."""

import importlib
import json
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.utils import run_files


def test_closing_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    months = {f"test/map_50/2020-{month:02}": month / 10 for month in (5, 7, 9)}
    totals = {"test/map": 0.5, "test/map_50": 0.75, "test/balanced": 0.25, "test/map_50/2020-10": None}
    (tmp_path / run_files.SCORES).write_text(json.dumps(months | totals))
    best = tmp_path / "best.ckpt"

    lines = importlib.import_module("demo").closing_block(tmp_path, best).splitlines()

    assert [" ".join(line.split()) for line in lines[:5]] == [
        "mAP50-95 0.5000",
        "mAP50 0.7500",
        "balanced 0.2500",
        "mAP50 of the best month 0.9000 2020-09",
        "mAP50 of the worst month 0.5000 2020-05",
    ]
    files = [best, tmp_path / run_files.PREDICTIONS, tmp_path / run_files.REPORT]
    assert [line.split(maxsplit=1)[1] for line in lines[5:8]] == [str(file) for file in files]
    assert lines[8] == "next:"
    assert [line.split()[3] for line in lines[9:]] == ["report", "predict", "fit"]
