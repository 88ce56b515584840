"""The end of the demo: scores, the time of a batch, files, three next commands, and the path of a picture."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.evaluation.drawing import GAP
from yolo_lightning.utils import run_files


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module("demo")


def test_closing_block(demo: ModuleType, tmp_path: Path) -> None:
    months = {f"test/map_50/2020-{month:02}": month / 10 for month in (5, 7, 9)}
    totals = {"test/map": 0.5, "test/map_50": 0.75, "test/balanced": 0.25, "test/map_50/2020-10": None}
    (tmp_path / run_files.SCORES).write_text(json.dumps(months | totals))
    best = tmp_path / "best.ckpt"

    lines = demo.closing_block(tmp_path, best, "0.50 s").splitlines()

    assert [" ".join(line.split()) for line in lines[:6]] == [
        "mAP50-95 0.5000",
        "mAP50 0.7500",
        "balanced 0.2500",
        "mAP50 of the best month 0.9000 2020-09",
        "mAP50 of the worst month 0.5000 2020-05",
        "one batch 0.50 s",
    ]
    files = [best, tmp_path / run_files.PREDICTIONS, tmp_path / run_files.REPORT]
    assert [line.split(maxsplit=1)[1] for line in lines[6:9]] == [str(file) for file in files]
    assert lines[9] == "next:"
    assert [line.split()[3] for line in lines[10:]] == ["report", "predict", "fit"]


def test_picture_shows_the_first_test_frame_of_each_month(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [{"date_captured": f"2020-0{1 + index // 2}-01T00:00:00", "file_name": str(index)} for index in range(16)]
    (tmp_path / "TestNoLabels.json").write_text(json.dumps({"images": images}))
    monkeypatch.setattr(demo, "DATA", tmp_path)
    files: list[str] = []

    def detect(file: Path) -> Any:
        files.append(file.name)
        return SimpleNamespace(plot=lambda: np.zeros((30, 40, 3), np.uint8))

    path = demo.draw_detections(tmp_path, detect)

    assert files == [str(index) for index in range(0, 16, 2)]
    picture = cv2.imread(str(path))
    assert picture is not None
    assert picture.shape[:2] == (2 * (30 + GAP), 4 * (40 + GAP))


@pytest.mark.whole_run
def test_last_line_of_the_demo_is_a_picture(tmp_path: Path) -> None:
    limits = {"MAX_EPOCHS": "1", "LIMIT_TRAIN_BATCHES": "2", "CHECK_VAL_EVERY_N_EPOCH": "1"}
    variables = {f"YOLO_LIGHTNING_FIT__TRAINER__{name}": value for name, value in limits.items()}
    variables["PYTHONPATH"] = str(REPOSITORY)
    result = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "demo.py")],
        cwd=tmp_path,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert "with gemm" in result.stdout
    picture = cv2.imread(str(tmp_path / result.stdout.splitlines()[-1]))
    assert picture is not None
