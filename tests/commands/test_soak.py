"""`soak`: division of the options, the report, and a training of some seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import draw_dataset

from tests.conftest import REPOSITORY
from yolo_lightning.checkpoints.checkpoint_file import find_damage, write_checkpoint
from yolo_lightning.commands import OWN_OPTIONS
from yolo_lightning.commands.option_layers import divided
from yolo_lightning.commands.soak import copied_state, end_of_fit, incidents, recommended, soak, trends
from yolo_lightning.utils.exit_codes import of_signal

HOUR = [
    {"hours": at / 60, "steps/s": 10.0 if at < 40 else 5.0, "data wait %": 30.0, "°C": 70.0, "memory GB": 1 + at / 10}
    for at in range(60)
]


def test_options_of_soak_and_of_fit_are_divided() -> None:
    words = ["--config", "a.yaml", "--hours", "0.5", "--data.root=x", "--hours=1", "--resume", "--help"]
    own, fit = ["--hours", "0.5", "--hours=1", "--help"], ["--config", "a.yaml", "--data.root=x", "--resume"]
    assert divided(words, OWN_OPTIONS["soak"]) == [*own, "--", *fit]
    assert divided([*own, "--", *fit], OWN_OPTIONS["soak"]) == [*own, "--", *fit]


def test_hours_must_be_positive() -> None:
    with pytest.raises(ValueError, match="--hours must be > 0, got 0"):
        soak(command=[], hours=0)


def test_state_is_a_copy_of_the_newest_checkpoint(tmp_path: Path) -> None:
    original = tmp_path / "mine" / "checkpoints" / "last.ckpt"
    write_checkpoint({"epoch": 1, "global_step": 2}, original)
    words = [f"--trainer.default_root_dir={tmp_path / 'mine'}"]
    assert copied_state([*words, "--ckpt_path=x.ckpt"], tmp_path / "new") == []
    assert not (tmp_path / "new").exists()
    assert copied_state(words, tmp_path / "new") == ["--resume"]
    assert find_damage(tmp_path / "new" / "checkpoints" / "last.ckpt") is None
    assert sorted(path.name for path in (tmp_path / "new").rglob("last*")) == ["last.ckpt", "last.ckpt.json"]
    assert copied_state([*words, "--resume"], tmp_path / "other") == []


def test_trends_show_parts_and_slopes() -> None:
    lines = trends(HOUR)
    assert len(lines) == 9 + 4
    assert lines[1].split() == ["7", "min", "0", "s", "10", "30", "70", "-", "1.35"]
    assert lines[8].split()[4] == "5", "steps per second at the end"
    assert "+6 memory GB per hour" in lines[-1]
    assert trends([]) == lines[:1]


def test_settings_are_recommended_for_waits_and_full_memory(tmp_path: Path) -> None:
    assert "num_workers" in recommended(HOUR, tmp_path)[0]
    full = [{"hours": 1.0, "GPU memory %": 95.0}]
    assert "batch_size" in recommended(full, tmp_path)[0]
    assert recommended([{"hours": 1.0}], tmp_path) == ["recommended: the settings as they are"]


def test_only_an_end_by_the_time_is_good(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("error: data.root\n")
    assert list(end_of_fit(of_signal(15), tmp_path / "run")) == []
    assert list(end_of_fit(2, tmp_path / "run"))[1:] == ["  error: data.root"]


@pytest.mark.whole_run
def test_a_training_of_seconds_from_a_copy_of_a_run(tmp_path: Path) -> None:
    root = draw_dataset(tmp_path / "data", train_frames=16, valid_frames=4, test_frames=1, width=160, height=120)
    run, temporary = tmp_path / "mine", tmp_path / "temporary"
    temporary.mkdir()
    words = [f"--data.root={root}", "--data.image_size=64", "--data.batch_size=4", "--data.loader.num_workers=0"]
    words += ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={run}"]

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "yolo_lightning", *words],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert start("fit", *words, "--trainer.max_epochs=1", "--supervision.enabled=false").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    done = start("soak", *words, "--hours=0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starts from a copy of" in done.stdout
    assert "nothing happened" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert list(temporary.glob("*soak*")) == []
    failed = start("soak", *words, "--data.batch_size=0")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1] == "error: data.batch_size must be >= 1 or auto, got 0"
    assert list(temporary.glob("*soak*")) == []


def test_damaged_incident_reports_count(tmp_path: Path) -> None:
    for name, content in (("1", json.dumps({"sentence": "stall", "phase": "step"})), ("2", "[")):
        (tmp_path / "incidents" / name).mkdir(parents=True)
        (tmp_path / "incidents" / name / "incident.json").write_text(content)
    assert [one["phase"] for one in incidents(tmp_path)] == ["step", "unknown phase"]
