"""Patience, time limit, saving every N epochs, search for a batch size: Lightning's callbacks by options."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping
from ultralytics.utils.torch_utils import EarlyStopping as UltralyticsEarlyStopping

from tests.conftest import REPOSITORY, TINY
from tests.parity.training_twins import Frames, make_trainer, random_batches
from yolo_lightning.callbacks import EpochCheckpoint, LastCheckpoint
from yolo_lightning.checkpoints.checkpoint_file import find_damage, link_checkpoint
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule

OVERLAYS = REPOSITORY / "configs" / "training"
CHECKPOINTS = Path("runs/small/checkpoints")
SMALL = [
    *("--data.batch_size", "8", "--model.convolution.backend", "native", "--trainer.default_root_dir", "runs/small"),
    *("--trainer.check_val_every_n_epoch", "1", "--trainer.limit_val_batches", "1"),
]
UNREACHABLE = ["--model.recipe.lr0", "1e-9", "--model.recipe.warmup_bias_lr", "0"]
"""The score stays what it is."""


@pytest.fixture
def fit(run: Callable[..., None], tmp_path: Path) -> Callable[..., None]:
    """`fit` with the demo's callbacks, then an overlay, then the options of the command line."""

    def call(overlay: dict[str, Any] | str | None, *options: str) -> None:
        files = []
        if overlay is not None:
            content = yaml.safe_load((OVERLAYS / overlay).read_text()) if isinstance(overlay, str) else overlay
            (tmp_path / "overlay.yaml").write_text(yaml.safe_dump(content))
            files = ["--config", str(tmp_path / "overlay.yaml")]
        run("fit", *files, *SMALL, *options, config=REPOSITORY / "configs" / "demo.yaml")

    return call


def patient(validations: int) -> dict[str, Any]:
    overlay: dict[str, Any] = yaml.safe_load((OVERLAYS / "early_stopping.yaml").read_text())
    overlay["trainer"]["callbacks+"][0]["init_args"]["patience"] = validations
    return overlay


def finished() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path("runs/small/finished.json").read_text())
    return report


@pytest.mark.parametrize("patience", [1, 2, 4])
@pytest.mark.parametrize(
    "scores", [(0.1, 0.2, 0.15, 0.19, 0.2, 0.1, 0.3), (0.5, 0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4, 0.5)]
)
def test_patience_stops_at_the_epoch_where_ultralytics_does(
    tmp_path: Path, patience: int, scores: tuple[float, ...]
) -> None:
    reference = UltralyticsEarlyStopping(patience)
    expected = next((epoch for epoch, score in enumerate(scores, start=1) if reference(epoch, score)), len(scores))
    stopping = EarlyStopping("val/map_50", mode="max", patience=patience)
    stopped = [stopping._evaluate_stopping_criteria(torch.tensor(score))[0] for score in scores]
    stopping.best_score = torch.tensor(-torch.inf)
    assert next((epoch for epoch, stop in enumerate(stopped, start=1) if stop), len(scores)) == expected


@pytest.mark.slow
def test_early_stopping_ends_the_run_as_finished_and_resume_keeps_its_count(fit: Callable[..., None]) -> None:
    fit(patient(3), "--trainer.max_epochs", "2", *UNREACHABLE)
    (kept,) = [state for name, state in last()["callbacks"].items() if name.startswith("EarlyStopping")]
    assert kept["wait_count"] == 1
    fit(patient(3), "--trainer.max_epochs", "9", "--resume", *UNREACHABLE)
    assert finished()["epochs"] == 4


def last() -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(CHECKPOINTS / "last.ckpt", weights_only=True)
    return checkpoint


@pytest.mark.whole_run
def test_time_limit_ends_the_run_as_finished_validated_and_resumable(fit: Callable[..., None]) -> None:
    fit(None, "--trainer.max_epochs", "1000", "--trainer.max_time", "00:00:00:01")
    trained, steps = finished()["epochs"], last()["steps"]
    assert 0 < trained < 1000
    assert (CHECKPOINTS / "best.ckpt").is_file()
    fit(None, "--trainer.max_epochs", "1000", "--trainer.max_time", "00:00:00:01", "--resume")
    assert last()["steps"] == steps, "the time of the run so far counts"
    fit(None, "--trainer.max_epochs", str(trained + 1), "--resume")
    assert finished()["epochs"] == trained + 1


@pytest.mark.slow
def test_every_epoch_is_kept_whole_and_under_its_own_name(fit: Callable[..., None]) -> None:
    fit("epoch_checkpoints.yaml", "--trainer.max_epochs", "2")
    fit("epoch_checkpoints.yaml", "--trainer.max_epochs", "3", "--resume")
    names = [f"epoch-000{number}.ckpt" for number in (1, 2, 3)]
    assert sorted(path.name for path in CHECKPOINTS.glob("epoch-*.ckpt")) == names
    contents = [torch.load(CHECKPOINTS / name, weights_only=True) for name in names]
    assert [content["steps"] for content in contents] == [2, 4, 6]
    assert all((CHECKPOINTS / f"{name}.json").is_file() for name in names), "no checksum: not written by our own IO"
    assert [find_damage(CHECKPOINTS / name) for name in names] == [None] * 3


def test_epoch_checkpoints_keep_to_their_interval_and_survive_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, trainer = (
        YOLOModule(convolution=ConvolutionSettings(backend="native")),
        make_trainer(tmp_path, 3, LastCheckpoint(0), EpochCheckpoint(2), enable_checkpointing=True),
    )
    trainer.fit(module, Frames(random_batches(1)))
    assert [path.name for path in tmp_path.glob("checkpoints/epoch*.ckpt")] == ["epoch-0002.ckpt"]

    def full(source: Path, target: Path) -> None:
        if target.name.startswith("epoch"):
            raise OSError(28, "No space left on device")
        link_checkpoint(source, target)

    monkeypatch.setattr("yolo_lightning.callbacks.checkpoint.link_checkpoint", full)
    trainer = make_trainer(tmp_path / "full", 1, LastCheckpoint(0), EpochCheckpoint(), enable_checkpointing=True)
    with pytest.warns(UserWarning, match=r"could not save .*epoch-0001.ckpt \(No space left on device\)"):
        trainer.fit(module, Frames(random_batches(1)))
    with pytest.raises(ValueError, match="every_n_epochs must be >= 1, got 0"):
        EpochCheckpoint(0)


def test_batch_size_is_found_and_nothing_trained(fit: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fit("find_batch_size.yaml", "--trainer.callbacks.max_trials", "2", "--trainer.default_root_dir", "runs/small")
    assert "Finished batch size finder, will continue with full run using batch size 8" in caplog.text
    assert finished()["steps"] == 0
    assert list(CHECKPOINTS.iterdir()) == []
    assert not list(Path("runs/small").glob(".scale_batch_size*"))


@pytest.mark.parametrize("overlay", sorted(OVERLAYS.glob("*.yaml")), ids=lambda path: path.name)
def test_overlay_says_how_to_use_it(overlay: Path) -> None:
    assert f"--config configs/training/{overlay.name}" in overlay.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["early_stopping", "time limit"])
def test_supervised_run_that_stops_early_is_not_started_again(
    how: str, look_alike: Path, index_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "overlay.yaml").write_text(yaml.safe_dump(patient(1)))
    options = {
        "early_stopping": ["--config", "overlay.yaml", *UNREACHABLE],
        "time limit": ["--trainer.max_time", "00:00:00:02"],
    }[how]
    words = [
        *("fit", "--config", str(REPOSITORY / "configs" / "demo.yaml"), "--supervision.enabled", "true"),
        *(
            "--data.root",
            str(look_alike),
            "--data.storage.index_root",
            str(index_root),
            "--data.loader.num_workers",
            "0",
        ),
        *(*TINY, *SMALL, "--trainer.max_epochs", "1000", *options),
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "yolo_lightning", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stdout
    assert "restart" not in done.stdout
    assert json.loads((tmp_path / "runs/small/finished.json").read_text())["epochs"] < 1000
