import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from tiny_detection import MISS, DetectionModule, Frames, numbers, prediction, target
from tiny_training import loader, tiny_trainer

from callbacks import EMA, BestCheckpoint, MeanAP

TWO_BATCHES = [
    ([prediction("a", scores=[0.5])], [target("a")]),
    ([prediction("b", scores=[0.9])], [target("b", MISS)]),
]
"""Alone the batches score 1 and 0; together the false alarm ranks first."""
TOGETHER = 0.5 * 51 / 101


class Logged(Callback):
    """Records what is known after each validation, the sanity check included."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def test_validation_logs_the_score_of_all_frames_not_the_mean_of_batches(tmp_path: Path) -> None:
    (values,) = tiny_trainer(tmp_path, MeanAP()).validate(
        DetectionModule(TWO_BATCHES), datamodule=Frames(numbers(2)), verbose=False
    )
    assert values["val/map_50"] == pytest.approx(TOGETHER, abs=1e-6)
    assert values["val/map_50/person"] == pytest.approx(TOGETHER, abs=1e-6)
    assert {"val/map", "val/map_75", "val/mar_1", "val/mar_10", "val/mar_100", "val/map/person"} < set(values)


def test_each_validation_starts_anew(tmp_path: Path) -> None:
    logged = Logged()
    trainer = tiny_trainer(tmp_path, MeanAP(), logged, epochs=2)
    trainer.fit(DetectionModule(TWO_BATCHES[:1]), loader(1), Frames(numbers(1)).val_dataloader())
    assert [values["val/map_50"] for values in logged.values] == [1.0, 1.0]


def test_sanity_check_logs_nothing(tmp_path: Path) -> None:
    logged = Logged()
    trainer = tiny_trainer(tmp_path, MeanAP(), logged, num_sanity_val_steps=1)
    trainer.fit(DetectionModule(TWO_BATCHES), loader(1), Frames(numbers(2)).val_dataloader())
    assert not any(name.startswith("val/") for name in logged.values[0])
    assert logged.values[1]["val/map_50"] == pytest.approx(TOGETHER, abs=1e-6)


def test_sanity_check_on_frames_without_objects_passes(tmp_path: Path) -> None:
    empty = [([prediction("a", [], [])], [target("a", [])])]
    logged = Logged()
    tiny_trainer(tmp_path, MeanAP(), EMA(), logged, num_sanity_val_steps=1).fit(
        DetectionModule(empty), loader(1), Frames(numbers(1)).val_dataloader()
    )
    assert [values.get("val/map_50") for values in logged.values] == [None, -1.0]


def test_best_checkpoint_is_chosen_by_it(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, BestCheckpoint(), MeanAP()).fit(
        DetectionModule(TWO_BATCHES), loader(1), Frames(numbers(2)).val_dataloader()
    )
    assert (tmp_path / "checkpoints/best.ckpt").is_file()


def test_test_logs_and_writes_the_scores(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (values,) = tiny_trainer(folder, MeanAP()).test(
        DetectionModule(TWO_BATCHES), datamodule=Frames(numbers(2)), verbose=False
    )
    written = json.loads((folder / "test_scores.json").read_text())
    assert written["test/map_50"] == pytest.approx(TOGETHER, abs=1e-6)
    assert written == pytest.approx(values, abs=1e-6)


def test_validation_writes_no_scores(tmp_path: Path) -> None:
    tiny_trainer(tmp_path, MeanAP()).validate(
        DetectionModule(TWO_BATCHES), datamodule=Frames(numbers(2)), verbose=False
    )
    assert list(tmp_path.iterdir()) == []


def test_predictions_and_targets_of_other_frames_are_refused(tmp_path: Path) -> None:
    mixed: list[Any] = [([prediction("a"), prediction("b")], [target("b"), target("a")])]
    with pytest.raises(AssertionError):
        tiny_trainer(tmp_path, MeanAP()).validate(DetectionModule(mixed), datamodule=Frames(numbers(1)), verbose=False)
