"""Options that `fit` passes to the supervisor."""

import math
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import TINY, data_options
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.cli import main
from yolo_lightning.options.run_spec import read_spec
from yolo_lightning.supervision.job import fit_command, job
from yolo_lightning.supervision.run_lock import run_lock


def test_restart_has_the_options_of_the_start_without_its_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "ckpt_path: b.ckpt\nfinish_by: 2030-01-01\n"
        "model: {recipe: {lr0: 1e-3, clip_norm: .inf}, weights: \U0001f600.pt}\n"
    )
    words = ["fit", "--config", str(file), "--ckpt_path", "a.ckpt", "--detach", "--trainer.callbacks+=EMA"]
    spec = read_spec(words, {"YOLO_LIGHTNING_FIT__SEED_EVERYTHING": "7"})
    spec.write(tmp_path)
    file.unlink()
    environment = {"YOLO_LIGHTNING_FIT__SEED_EVERYTHING": "8"}
    command = fit_command(tmp_path)
    resumed = read_spec([*command[3:], "--resume", "--data.loader.num_workers=2"], environment)
    assert command[:3] == (sys.executable, "-m", "yolo_lightning")
    assert resumed.given == {
        "ckpt_path": None,
        "model.recipe.lr0": 0.001,
        "model.recipe.clip_norm": math.inf,
        "model.weights": "\U0001f600.pt",
        "finish_by": "2030-01-01",
        "seed_everything": 7,
        "detach": True,
        "trainer.callbacks+": "EMA",
        "trainer.default_root_dir": str(tmp_path),
        "resume": True,
        "data.loader.num_workers": 2,
    }
    assert resumed.parser_words()[-3:] == ["--ckpt_path=null", "--resume", "--data.loader.num_workers=2"]
    assert read_spec(command[3:], {}).given["ckpt_path"] == "a.ckpt"
    for words, checkpoint in ((["--resume=true"], None), (["--resume", "true"], None), (["--resume=false"], "a.ckpt")):
        assert read_spec([*command[3:], *words], {}).given["ckpt_path"] == checkpoint
    assert (tmp_path / "spec.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["[", "{}x", "3"])
def test_damaged_options_of_a_run_are_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(ValueError, match=r"spec\.json of --config cannot be read: "):
        read_spec(["fit", f"--config={tmp_path / 'spec.json'}"], {})


def test_all_attempts_train_in_one_folder_and_restarts_resume() -> None:
    supervised_job = job(Path("runs/x-2"), {"data.loader.num_workers": 4, "trainer.accelerator": "cpu"})
    command = (sys.executable, "-m", "yolo_lightning", "fit", "--config=runs/x-2/spec.json")
    assert supervised_job.command == command
    assert supervised_job.restart_command == (*command, "--resume")
    assert (supervised_job.workers, supervised_job.smoke_test) == (4, ())


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
