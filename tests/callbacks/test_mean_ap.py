import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint

from tests.callbacks.tiny_detection import MISS, DetectionModule, Frames, numbers, prediction, target
from tests.callbacks.tiny_training import loader, tiny_trainer
from yolo_lightning.callbacks import EMA, BestCheckpoint, MeanAP
from yolo_lightning.callbacks.mean_ap import score_names
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.score_intervals import BOOTSTRAPPED, BootstrapScores, limits
from yolo_lightning.module import YOLOModule

TWO_BATCHES = [
    ([prediction("a", scores=[0.5])], [target("a")]),
    ([prediction("b", scores=[0.9])], [target("b", MISS)]),
]
"""Alone the batches score 1 and 0; together the false alarm ranks first."""
TOGETHER = 0.5 * 51 / 101
TWO_MONTHS = [
    ([prediction("a")], [target("a", month=202101)]),
    ([prediction("b"), prediction("c", [], [])], [target("b", month=202005), target("c", month=202005)]),
]
"""January scores 1, May 51/101; together two of three objects are found."""


class Logged(Callback):
    """Records what is known after each validation, the sanity check included."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.values.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def validated(folder: Path, answers: Any) -> Any:
    """Return the logged scores of a validation."""
    trainer = tiny_trainer(folder, MeanAP())
    return trainer.validate(DetectionModule(answers), datamodule=Frames(numbers(2)), verbose=False)[0]


def test_validation_logs_the_score_of_all_frames_not_the_mean_of_batches(tmp_path: Path) -> None:
    values = validated(tmp_path, TWO_BATCHES)
    assert values["val/map_50"] == pytest.approx(TOGETHER, abs=1e-6)
    assert values["val/map_50/person"] == pytest.approx(TOGETHER, abs=1e-6)
    assert {"val/map", "val/map_75", "val/mar_1", "val/mar_10", "val/mar_100", "val/map/person"} < set(values)
    assert not any("_low" in name for name in values)
    assert [path.name for path in tmp_path.iterdir()] == ["evaluations"]


def test_each_validation_starts_anew(tmp_path: Path) -> None:
    logged = Logged()
    trainer = tiny_trainer(tmp_path, MeanAP(), logged, epochs=2)
    trainer.fit(DetectionModule(TWO_BATCHES[:1]), loader(1), Frames(numbers(1)).val_dataloader())
    assert [values["val/map_50"] for values in logged.values] == [1.0, 1.0]


def test_sanity_check_on_frames_without_objects_passes(tmp_path: Path) -> None:
    empty = [([prediction("a", [], [])], [target("a", [])])]
    logged = Logged()
    tiny_trainer(tmp_path, MeanAP(), EMA(), logged, num_sanity_val_steps=1).fit(
        DetectionModule(empty), loader(1), Frames(numbers(1)).val_dataloader()
    )
    assert not any(name.startswith("val/") for name in logged.values[0])
    assert logged.values[1]["val/map_50"] == -1.0


def test_bounds_of_every_bootstrapped_score_can_be_monitored() -> None:
    named = limits(BootstrapScores({name: np.arange(3.0) for name in BOOTSTRAPPED}, ()))
    assert {"cov_low", "balanced_low", "map_50_high"} <= named.keys()
    assert named.keys() <= score_names(2, bounds=True)
    assert not named.keys() & score_names(2, bounds=False)


def test_value_that_a_function_of_the_user_logs_can_be_monitored(tmp_path: Path) -> None:
    log = LambdaCallback(on_validation_epoch_end=lambda trainer, module: module.log("val/own", 1.0))
    trainer = tiny_trainer(tmp_path, MeanAP(), log, EarlyStopping("val/own"))
    MeanAP().setup(trainer, YOLOModule(), "fit")


def test_bounds_of_a_bootstrap_are_logged_and_can_be_monitored(tmp_path: Path) -> None:
    """Each frame is a clip of its own: a sample has none, one or two copies of the frame with a correct detection."""
    logged = Logged()
    callbacks = (MeanAP(bootstrap_samples=200), BestCheckpoint(monitor="val/balanced_low"), logged)
    tiny_trainer(tmp_path, *callbacks).fit(DetectionModule(TWO_BATCHES), loader(1), Frames(numbers(2)).val_dataloader())
    (values,) = logged.values
    assert (values["val/balanced_low"], values["val/balanced_high"]) == (0, 1)
    assert (tmp_path / "checkpoints/best.ckpt").is_file()
    assert callbacks[1].best_model_score == values["val/balanced_low"]


@pytest.mark.parametrize("callback_class", [EarlyStopping, ModelCheckpoint])
def test_fit_without_a_validation_ends_with_a_warning(callback_class: type[Callback], tmp_path: Path) -> None:
    callback = callback_class(monitor="val/map_50", mode="max")  # type: ignore[call-arg]
    trainer = tiny_trainer(tmp_path, MeanAP(), callback, max_steps=1)
    with pytest.warns(UserWarning, match=rf"{callback_class.__name__} does nothing, because the fit ends before"):
        trainer.fit(DetectionModule(TWO_BATCHES), loader(2), Frames(numbers(2)).val_dataloader())
    assert trainer.global_step == 1
    trainer = tiny_trainer(tmp_path, MeanAP(), callback, limit_val_batches=0)
    with pytest.raises(UserError, match=r"monitor val/map_50 needs validations, but trainer.limit_val_batches is 0"):
        trainer.fit(DetectionModule(TWO_BATCHES), loader(2), Frames(numbers(2)).val_dataloader())


def test_drift_and_ultralytics_scores_are_logged(tmp_path: Path) -> None:
    values = validated(tmp_path, TWO_MONTHS)
    variation = 50 / math.sqrt(2) / 76
    assert values["val/map_50/2021-01"] == pytest.approx(1)
    assert values["val/map_50/2020-05"] == pytest.approx(51 / 101)
    assert values["val/cov"] == pytest.approx(variation)
    assert values["val/balanced"] == pytest.approx((1 - variation) * 67 / 101)
    assert values["val/map_50"] == pytest.approx(67 / 101)
    assert values["val/precision"] == values["val/precision/person"] == 1
    assert values["val/recall"] == pytest.approx(2 / 3)
    assert values["val/f1"] == pytest.approx(0.8)
    area = (66 * 1.0 + 1.0 * 0.5) / 100  # precision 1 up to recall 0.66, then 0 from 0.67 on
    assert values["val/ultralytics_map_50"] == pytest.approx(area)
    assert {
        "val/ultralytics_f1",
        "val/ultralytics_map",
        "val/ultralytics_map/person",
        "val/f1/person",
        "val/recall/person",
    } < set(values)


NOTHING = [([prediction("a", [], []), prediction("b", [], [])], [target("a", month=202101), target("b", month=202005)])]
"""A network that finds nothing has no variation."""


def test_undefined_balance_is_beaten_by_any_other_and_null_in_files(tmp_path: Path) -> None:
    best = BestCheckpoint(monitor="val/balanced")
    trainer = tiny_trainer(tmp_path, AnswersFrom(1, TWO_MONTHS[:1]), best, MeanAP(), epochs=2)
    trainer.fit(DetectionModule(NOTHING), loader(1), Frames(numbers(1)).val_dataloader())
    assert best.best_model_score is not None
    assert float(best.best_model_score) == 1
    tiny_trainer(tmp_path, MeanAP()).test(DetectionModule(NOTHING), datamodule=Frames(numbers(1)), verbose=False)
    assert json.loads((tmp_path / "test_scores.json").read_text())["test/cov"] is None


class AnswersFrom(Callback):
    """Gives the module other answers from an epoch on."""

    def __init__(self, epoch: int, answers: Any) -> None:
        self.epoch, self.answers = epoch, answers

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch >= self.epoch:
            pl_module.answers = self.answers


@pytest.mark.parametrize("command", ["validate", "test"])
def test_scores_are_printed_as_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    trainer = tiny_trainer(tmp_path, MeanAP())
    getattr(trainer, command)(DetectionModule(TWO_MONTHS), datamodule=Frames(numbers(2)), verbose=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["month", "frames", "objects", "50", "50-95", "person", "bicycle"] in lines
    assert ["all", "3", "3", "0.6634", "0.6634", "0.6634", "-"] in lines
    assert ["2021-01", "1", "1", "1.0000", "1.0000", "1.0000", "-"] in lines
    assert any(line[-2:] == ["balanced", "0.3548"] for line in lines)
    assert ["class", "objects", "precision", "recall", "f1", "mAP50", "mAP50-95"] in lines
    assert ["person", "3", "1.0000", "0.6667", "0.8000", "0.6634", "0.6634"] in lines
    assert ["as", "Ultralytics", "defines", "them:", "mAP50", "0.6650,", "mAP50-95", "0.6650"] in lines


@pytest.mark.parametrize("label", [0, 1], ids=["annotated", "no objects"])
def test_tables_of_other_datasets_lack_the_terms_of_the_challenge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], label: int
) -> None:
    truth = [target("a")] if label == 0 else [target("a", boxes=[])]
    module = DetectionModule([([prediction("a")], truth)])
    tiny_trainer(tmp_path, MeanAP()).validate(module, datamodule=Frames(numbers(1)), verbose=False)
    text = capsys.readouterr().out
    first = "1 frames, 1 objects, mAP50 1.0000, mAP50-95 1.0000\nmAP75 1.0000, AR@1 1.0000, AR@10 1.0000, AR@100 1.0000"
    assert text.startswith((first if label == 0 else "1 frames, 0 objects") + "\n")
    for word in ("balanced", "CoV", "month", "nan", "map_50", "classes"):
        assert word not in text


def test_test_logs_and_writes_the_scores_also_those_of_the_organisers(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "run", MeanAP())
    (values,) = trainer.test(DetectionModule(TWO_MONTHS), datamodule=Frames(numbers(2)), verbose=False)
    written = json.loads((tmp_path / "run/test_scores.json").read_text())
    assert written["test/map_50"] == pytest.approx(67 / 101)
    assert written == pytest.approx(values, abs=1e-6)
    organisers = json.loads((tmp_path / "run/scores.json").read_text())
    assert (organisers["jan_map_50"], organisers["feb_map_50"]) == (1, -1)
    assert organisers["may_map_per_class"] == pytest.approx([51 / 101])
    assert list(organisers)[-2:] == ["global_map_con", "global_map_bal"]


def test_predictions_and_targets_of_other_frames_are_refused(tmp_path: Path) -> None:
    mixed: list[Any] = [([prediction("a"), prediction("b")], [target("b"), target("a")])]
    with pytest.raises(AssertionError):
        tiny_trainer(tmp_path, MeanAP()).validate(DetectionModule(mixed), datamodule=Frames(numbers(1)), verbose=False)


def evaluations(folder: Path) -> set[str]:
    return {path.name for path in (folder / "evaluations").iterdir()}


@pytest.mark.parametrize(("command", "stage"), [("validate", "val"), ("test", "test")])
def test_an_evaluation_leaves_a_record(tmp_path: Path, command: str, stage: str) -> None:
    trainer = tiny_trainer(tmp_path, MeanAP())
    getattr(trainer, command)(DetectionModule(TWO_MONTHS), datamodule=Frames(numbers(2)), verbose=False)
    assert evaluations(tmp_path) == {f"{stage}.npz"}
    record = EvaluationRecord.load(tmp_path / f"evaluations/{stage}.npz")
    assert (record.stage, record.epoch, record.steps) == (stage, None, None)
    assert record.class_names == ("person", "bicycle")
    assert record.image_ids == ("a", "b", "c")
    assert record.matches.annotated.sum() == 3
    assert record.ultralytics.confusion().tolist() == [[2, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_a_fit_leaves_the_record_of_its_last_validation_and_prints_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = tiny_trainer(tmp_path, MeanAP(), AnswersFrom(1, TWO_BATCHES[:1]), epochs=2)
    trainer.fit(DetectionModule(TWO_MONTHS[:1]), loader(3), Frames(numbers(1)).val_dataloader())
    record = EvaluationRecord.load(tmp_path / "evaluations/val.npz")
    assert (record.epoch, record.steps) == (1, 6)
    assert "frames" not in capsys.readouterr().out
    assert record.matches.months.tolist() == [0]


def test_record_says_how_long_its_weights_were_trained(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path, MeanAP(), BestCheckpoint())
    trainer.fit(DetectionModule(TWO_MONTHS), loader(3), Frames(numbers(2)).val_dataloader())
    other = tiny_trainer(tmp_path, MeanAP())
    other.test(
        DetectionModule(TWO_MONTHS),
        datamodule=Frames(numbers(2)),
        ckpt_path=tmp_path / "checkpoints/best.ckpt",
        verbose=False,
    )
    record = EvaluationRecord.load(tmp_path / "evaluations/test.npz")
    assert (record.epoch, record.steps) == (0, 3)


def test_a_file_that_cannot_be_written_costs_the_record_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "evaluations").write_text("")
    trainer = tiny_trainer(tmp_path, MeanAP())
    with pytest.warns(UserWarning, match=r"could not write .*val.npz"):
        trainer.fit(DetectionModule(TWO_MONTHS), loader(1), Frames(numbers(2)).val_dataloader())
    assert trainer.state.finished
