"""Options that `fit` passes to the supervisor."""

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY, data_options
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
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
        (["fit", "--resume", "true", "--trainer.max_epochs=3"], ["fit", "--trainer.max_epochs=3"]),
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


def test_run_that_somebody_trains_is_not_resumed(
    look_alike: Path, index_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    parts = {
        "state_dict": {"graph.weight": 0},
        "optimizer_states": [{"state": {}, "param_groups": []}],
        "loops": {"fit_loop": {"e": 0}},
    }
    write_checkpoint({"global_step": 1, "epoch": 0, "callbacks": {}} | parts, folder / "checkpoints" / "last.ckpt")
    data = data_options(look_alike, index_root)
    with run_lock(folder), pytest.raises(SystemExit) as stopped:
        main(["fit", "--resume", "--trainer.accelerator", "cpu", *data, *TINY, f"--trainer.default_root_dir={folder}"])
    assert stopped.value.code == 2
    assert f"process {os.getpid()}" in capsys.readouterr().err
