"""Options that `fit` passes to the supervisor, and a complete fit under a supervisor."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, TINY, data_options
from yolo_lightning.cli import main
from yolo_lightning.supervision import SuperviseSettings, run_lock
from yolo_lightning.supervision.job import RUN_FOLDER_OPTION, job, resume_words


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["fit", "--resume"], ["fit"]),
        (["fit", "--ckpt_path", "a.ckpt", "--config", "c.yaml"], ["fit", "--config", "c.yaml"]),
        (["fit", "--ckpt_path=a.ckpt", "--data.root", "d"], ["fit", "--data.root", "d"]),
        (["fit", "--resume=true", "--trainer.max_epochs=3"], ["fit", "--trainer.max_epochs=3"]),
    ],
)
def test_restart_does_not_begin_where_the_first_attempt_did(words: list[str], kept: list[str]) -> None:
    assert resume_words(words, Path("run")) == [*kept, f"{RUN_FOLDER_OPTION}=run", "--resume"]


def test_all_attempts_train_in_one_folder_and_restarts_resume() -> None:
    words = ["fit", "--config", "c.yaml", "--ckpt_path", "a.ckpt"]
    made = job(words, Path("runs/x-2"), workers=4, settings=SuperviseSettings(), on_gpu=False)
    program = (sys.executable, "-m", "yolo_lightning")
    assert made.command == (*program, *words, "--trainer.default_root_dir=runs/x-2")
    place = "--trainer.default_root_dir=runs/x-2"
    assert made.restart_command == (*program, "fit", "--config", "c.yaml", place, "--resume")
    assert (made.workers, made.smoke_test) == (4, ())


def test_folder_that_somebody_trains_in_is_refused(
    look_alike: Path, index_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    data = data_options(look_alike, index_root)
    with run_lock(folder), pytest.raises(SystemExit) as stopped:
        main(["fit", "--trainer.accelerator", "cpu", *data, *TINY, "--trainer.default_root_dir", str(folder)])
    assert stopped.value.code == 2
    assert f"process {os.getpid()}" in capsys.readouterr().err


@pytest.mark.slow  # test_faults does the same in the quick run
def test_killed_trainer_is_started_again_and_finishes(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    words = [
        *("fit", "--supervision.enabled", "true", "--supervision.pause_s", "0", "--trainer.accelerator", "cpu", *TINY),
        *(
            "--data.root",
            str(look_alike),
            "--data.storage.index_root",
            str(index_root),
            "--data.loader.num_workers",
            "0",
        ),
        *("--trainer.max_epochs", "4", "--data.batch_size", "4", "--trainer.default_root_dir", "run"),
        *("--trainer.limit_val_batches", "1", "--model.convolution.backend", "native"),
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "yolo_lightning", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        first = tmp_path / "run" / "checkpoints" / "step-000000004.ckpt.json"
        deadline_s = time.monotonic() + 120
        while not first.is_file() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        trainer = json.loads((tmp_path / "run" / "supervisor.json").read_text())["trainer"]
        os.kill(trainer, signal.SIGKILL)
        shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    assert "SIGKILL" in shown
    assert re.search(r"checkpoint: .*step-", shown)
    assert json.loads((tmp_path / "run" / "finished.json").read_text())["epochs"] == 4
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert len(rows) == len(set(rows))
