"""Public names of `yolo_lightning`."""

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from synthetic import draw_dataset

import yolo_lightning
from tests.callbacks.tiny_training import tiny_trainer
from tests.conftest import REPOSITORY
from tests.helpers.data_module import data_module
from yolo_lightning.callbacks import (
    EMA,
    BestCheckpoint,
    EpochCheckpoint,
    FinishBy,
    FrameGallery,
    HeartbeatFile,
    LastCheckpoint,
    MeanAP,
    MetricsFile,
    ProgressLines,
    StallMonitor,
    StatusFile,
    SubmissionWriter,
)
from yolo_lightning.conv import AutotunedPlan, conv2d
from yolo_lightning.data.batch import TrainingFacts, collate
from yolo_lightning.model.convolution_settings import ConvolutionSettings


def test_public_names_are_listed_and_imported_at_first_use() -> None:
    assert set(yolo_lightning.__all__) <= set(dir(yolo_lightning))
    assert [getattr(yolo_lightning, name).__name__ for name in yolo_lightning.__all__] == yolo_lightning.__all__


@pytest.mark.parametrize("names", ["RBC", 3, [1, 2], ["a", " "]])
def test_class_names_are_a_list(names: Any) -> None:
    with pytest.raises(ValueError, match=r"model\.class_names must be a list of names, as \['person', 'car'\], got "):
        yolo_lightning.YOLOModule(class_names=names)


def test_classes_of_model_and_data_are_compared(tmp_path: Path) -> None:
    module = yolo_lightning.YOLOModule(class_names=["a"])
    other = data_module(root=str(draw_dataset(tmp_path / "drawn", train_frames=8, valid_frames=8, test_frames=8)))
    trainer = tiny_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"model\.class_names \['a'\] and the classes of the data .* differ: use"):
        trainer.validate(module, datamodule=other)
    with pytest.warns(UserWarning, match=r"differ; boxes have the names of the model"):
        module._check_classes(["x"])


METRIC: Any = yolo_lightning.MeanAveragePrecision
MODULE: Any = yolo_lightning.YOLOModule
NETWORK = torch.nn.Conv2d(3, 4, 3)
IMAGES = torch.zeros(1, 3, 8, 8), torch.zeros(4, 3, 3, 3)


def loader(**options: Any) -> Any:
    return yolo_lightning.resumable_loader(range(8), 2, **options)


def scores_of(scores: float = 0.5, target: Sequence[float] = (0, 0, 9, 9)) -> Any:
    metric, labels = METRIC(), torch.tensor([0])
    boxes = torch.tensor([[0.0, 0, 9, 9]])
    detections = {"boxes": boxes, "scores": torch.tensor([scores]), "labels": labels}
    metric.update([detections], [{"boxes": torch.tensor([target]), "labels": labels}])
    return metric.compute()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'yolo_lightning' has no attribute 'YoloModule'"):
        _ = yolo_lightning.YoloModule


LIGHT = {
    "yolo_lightning": ("torch", "lightning", "ultralytics"),
    "yolo_lightning.conv": ("torch._dynamo", "lightning", "ultralytics"),
    "yolo_lightning.supervision.__main__": ("torch", "lightning", "numpy"),
    "yolo_lightning.supervision.heartbeat": ("torch", "lightning", "numpy"),
    "yolo_lightning.supervision.run_status": ("torch",),
    "yolo_lightning.utils.sensors": ("torch",),
    "yolo_lightning.commands.monitor.command": ("torch", "lightning"),
    "yolo_lightning.commands.benchmark.command": ("torch",),
}
"""Modules, and packages that an import of the module does not load."""


@pytest.mark.parametrize("module", LIGHT)
def test_import_loads_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print({{*{LIGHT[module]}}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def data(look_alike: Path, index_root: Path) -> Any:
    from yolo_lightning.data.loader_settings import LoaderSettings

    loader = LoaderSettings(num_workers=0)
    return data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, loader=loader)


@pytest.fixture
def model(data: Any) -> Any:
    from yolo_lightning import YOLOModule

    return YOLOModule(class_names=data.class_names, convolution=ConvolutionSettings(backend="gemm"))


def quiet_trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_training_without_the_command_line(data: Any, model: Any, tmp_path: Path) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=2, limit_val_batches=1, num_sanity_val_steps=0)
    trainer.fit(model, data)
    assert trainer.global_step == 1
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert 0 <= trainer.callback_metrics["val/map"] <= 1


def test_validation_of_a_plain_trainer_returns_scores_and_writes_nothing(data: Any, model: Any, tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path)
    for _ in range(2):  # the callback is added once
        (scores,) = trainer.validate(model, data, verbose=False)
    assert {"val/map", "val/map_50", "val/box_loss"} <= scores.keys()
    assert sum(isinstance(callback, MeanAP) for callback in trainer.callbacks) == 1
    assert list(tmp_path.iterdir()) == []


def test_own_mean_ap_keeps_its_place_and_writes_its_files(data: Any, model: Any, tmp_path: Path) -> None:
    mean_ap = MeanAP()
    trainer = quiet_trainer(tmp_path, callbacks=[mean_ap])
    trainer.test(model, data, verbose=False)
    assert [callback for callback in trainer.callbacks if isinstance(callback, MeanAP)] == [mean_ap]
    assert (tmp_path / "test_scores.json").is_file()


def test_prediction_of_a_plain_trainer_returns_the_detections_of_each_frame(
    data: Any, model: Any, tmp_path: Path
) -> None:
    batches = quiet_trainer(tmp_path).predict(model, data)
    assert batches is not None
    assert [prediction.image_id for batch in batches for prediction in batch] == data.predict_image_ids
    assert all(prediction.boxes.shape == (len(prediction.scores), 4) for batch in batches for prediction in batch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: yolo_lightning.unswap_convs(None), "unswap_convs converts a torch.nn.Module, got None"),
        (lambda: AutotunedPlan("60"), "budget_s must be >= 0 seconds, got '60'"),
        (lambda: yolo_lightning.CheckpointMirror(None), "a mirror must be an address, .* got None"),
        (lambda: yolo_lightning.CheckpointMirror("s3:/bucket"), "a mirror must be an address, .* got 's3:/bucket'"),
        (lambda: yolo_lightning.CheckpointMirror(""), "a mirror must be an address, .* got ''"),
        (lambda: yolo_lightning.CheckpointMirror("s3//bucket"), "a mirror must be an address, .* got 's3//bucket'"),
        (lambda: yolo_lightning.resumable_loader([1], "4"), "batch_size must be an integer >= 1, got '4'"),
        (
            lambda: yolo_lightning.resumable_loader(iter([1]), 4),
            r"dataset must have a length and dataset\[index\], got",
        ),
        (
            lambda: yolo_lightning.MeanAveragePrecision().update({}, {}),
            r"update\.preds must be a list of dictionaries, got \{\}",
        ),
        (
            lambda: yolo_lightning.Recipe(optimizer="sgd"),
            r"optimizer must be auto, SGD, .*, MuSGD or a class path, got",
        ),
        (lambda: yolo_lightning.LossSettings(box_gain=-1), r"model\.loss\.box_gain must be >= 0, got -1"),
        (lambda: yolo_lightning.YOLOModule(weights=3), r"model\.weights must be a text or null, got 3"),
        (
            lambda: yolo_lightning.YOLOModule(class_width=0),
            r"class_width must be >= 1 and <= 8192 or null, got 0",
        ),
        (lambda: yolo_lightning.DetectionDataModule(format=3), r"data\.format must be a text, got 3"),
        (
            lambda: yolo_lightning.DetectionDataModule(batch_size=True),
            r"data\.batch_size must be an integer or auto, got True",
        ),
        (
            lambda: MODULE(epochs=3),
            "YOLOModule has no argument 'epochs'. Did you mean max_epochs of Trainer. The arguments are variant,",
        ),
        (lambda: MODULE(conf=0.4), r"Did you mean detections=DetectionSettings\(score_threshold=\.\.\.\)"),
        (lambda: MODULE(nc=3), "Did you mean class_names"),
        (lambda: yolo_lightning.DetectionDataModule(**{"data": "x.yaml"}), "'data'. Did you mean format"),
        (lambda: yolo_lightning.Detector("x", **{"imgsz": 64}), "'imgsz'. Did you mean image_size"),
        (lambda: yolo_lightning.Recipe(**{"momemtum": 0}), "Recipe has no argument 'momemtum'. Did you mean momentum"),
        (lambda: yolo_lightning.Recipe(lr0=math.inf), r"model\.recipe\.lr0 must be a number > 0, got inf"),
        (lambda: yolo_lightning.YOLOModule(recipe={1: 1}), "Recipe has no setting 1"),
        (lambda: BestCheckpoint(None), r"BestCheckpoint\.monitor must be a text, got None"),
        (lambda: BestCheckpoint(" "), r"BestCheckpoint\.monitor must be the name of a logged metric, got ' '"),
        (lambda: BestCheckpoint(mode="up"), r"BestCheckpoint\.mode must be max or min, got 'up'"),
        (lambda: LastCheckpoint(2.5), r"LastCheckpoint\.interval_steps must be an integer, got 2\.5"),
        (lambda: EpochCheckpoint(1.5), r"EpochCheckpoint\.every_n_epochs must be an integer, got 1\.5"),
        (lambda: EMA("0.9"), r"EMA\.decay must be a number, got '0\.9'"),
        (lambda: FrameGallery(None), r"FrameGallery\.best must be an integer, got None"),
        (lambda: FinishBy(5), r"FinishBy\.finish_by must be a text or null, got 5"),
        (lambda: StallMonitor(math.inf), "timeout_s must be a number > 0, got inf"),
        (lambda: StatusFile(pause_when_hot="no"), r"StatusFile\.pause_when_hot must be true or false, got 'no'"),
        (lambda: MeanAP("no"), r"MeanAP\.report must be true or false, got 'no'"),
        (lambda: ProgressLines(None), r"ProgressLines\.interval_s must be a number, got None"),
        (lambda: loader(shuffle="yes"), r"resumable_loader\.shuffle must be true or false, got 'yes'"),
        (lambda: loader(collate_fn="x"), "collate_fn must be a function, .* got x"),
        (lambda: loader(trainer="x"), "trainer a Trainer or None, got .* and x"),
        (lambda: loader(workers=1), "resumable_loader has no argument 'workers'. Did you mean num_workers"),
        (lambda: loader().load_state_dict({}), r"must be a result of its state_dict\(\), got \{\}"),
        (
            lambda: yolo_lightning.resumable_loader("abc", 2),
            r"must have a length and dataset\[index\], got str",
        ),
        (
            lambda: yolo_lightning.latest_checkpoint(None),
            r"folder must be a text or a path, got None",
        ),
        (
            lambda: yolo_lightning.latest_checkpoint(__file__),
            "folder must be a run folder, which contains",
        ),
        (lambda: yolo_lightning.find_damage(5), r"find_damage\.path must be a text or a path, got 5"),
        (lambda: yolo_lightning.heartbeat(5), "phase must be one of import, .* got 5"),
        (lambda: yolo_lightning.heartbeat("step", "5"), "step must be an integer >= 0 or None, got '5'"),
        (lambda: METRIC(iou_thresholds=0.5), r"MeanAveragePrecision\.iou_thresholds must be a list of numbers or null"),
        (lambda: METRIC(iou_thresholds=[1.5]), "iou_thresholds must be >= 0 and <= 1, got 1.5"),
        (lambda: METRIC().update(None, None), r"update\.preds must be a list of dictionaries, got None"),
        (
            lambda: METRIC().update([{"labels": 1}], [{}]),
            r"preds\[0\] must contain the tensor 'boxes', got the keys labels",
        ),
        (lambda: scores_of(scores=math.nan), "preds: boxes must be x, y, x, y with finite values, .* got x, y"),
        (lambda: scores_of(target=[9.0, 9, 0, 0]), "target: .* in target the smaller ones first, got x, y, width"),
        (lambda: yolo_lightning.swap_convs(NETWORK, skip=None), "skip must be a list of names"),
        (lambda: yolo_lightning.swap_convs(torch.jit.script(torch.nn.ReLU())), "before torch.jit.trace"),
        (lambda: conv2d(None, None), "input, weight and bias must be tensors and plan a Plan, got NoneType"),
        (
            lambda: yolo_lightning.swap_convs(torch.nn.Conv1d(3, 4, 3))(None),
            "of conv1d must be tensors, got NoneType",
        ),
        (lambda: collate([]), r"collate needs a list of Samples, got \[\]"),
        (lambda: loader(trainer=Trainer), "trainer a Trainer or None, got .* and <class"),
        (lambda: conv2d(*IMAGES, stride=1.5), "stride must be one integer or one for each of the 2 .* got 1.5"),
        (lambda: conv2d(*IMAGES, groups="1"), "groups must be an integer > 0, got '1'"),
        (lambda: conv2d(*IMAGES, memory_format="x"), "memory_format must be a torch.memory_format or None, got 'x'"),
        (lambda: AutotunedPlan(1, cache_file=3), "cache_file must be the path of a file or None, got 3"),
        (lambda: yolo_lightning.AtomicCheckpointIO().save_checkpoint(None, "x"), "checkpoint must be a dictionary"),
        (lambda: yolo_lightning.AtomicCheckpointIO().load_checkpoint(__file__), "it is not a file of torch.save"),
        (lambda: yolo_lightning.YOLOModule.load_from_checkpoint(None), "checkpoint_path must be a path, got None"),
        (lambda: yolo_lightning.YOLOModule.load_from_checkpoint("x.ckpt"), "x.ckpt cannot be used: it does not exist"),
    ],
)
def test_argument_of_another_type_is_named(call: Callable[[], Any], message: str) -> None:
    assert yolo_lightning.find_damage("nowhere.ckpt") == "it does not exist"
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 3, 64, 64), np.uint8), "images must be a tensor .* got ndarray"),
        (torch.zeros(3, 64, 64, dtype=torch.uint8), r"got \(3, 64, 64\) of torch\.uint8"),
        (torch.zeros(1, 4, 64, 64), r"got \(1, 4, 64, 64\) of torch\.float32"),
        (torch.zeros(0, 3, 64, 64), r"got \(0, 3, 64, 64\) of torch\.float32"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.int64), r"got \(1, 3, 64, 64\) of torch\.int64"),
        (torch.ones(1, 3, 64, 64), "got values up to 1"),
        (torch.zeros(1, 3, 65, 64), r"multiples of 32 and >= 32, got \[65, 64\]"),
    ],
)
def test_images_of_another_form_are_refused(model: Any, images: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(images)
    with pytest.raises(ValueError, match="a DataLoader must yield"):
        model.predict_step(images, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: data.train_dataloader(), r"train split is not open: call setup\('fit'\) of the data module"),
        (lambda data: data.val_dataloader(), r"valid split is not open: call setup\('fit'\) or setup\('validate'\)"),
        (lambda data: data.training_facts(), "train split is not open"),
        (lambda data: data.setup("train"), "stage must be one of fit, validate, test, predict, got 'train'"),
        (lambda data: data.index("val"), "split must be one of train, valid, test, predict, got 'val'"),
    ],
)
def test_data_module_before_its_setup(data: Any, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(data)
    assert data.state_dict() == {}
    data.load_state_dict({})


def test_checkpoint_after_a_validation_and_with_numbers_of_numpy(data: Any, tmp_path: Path) -> None:
    recipe = yolo_lightning.Recipe(lr0=np.float64(0.01), nominal_batch=np.int64(8))  # type: ignore[arg-type]
    names = tuple(np.array(data.class_names))
    model = yolo_lightning.YOLOModule(class_names=names, recipe=recipe, convolution=ConvolutionSettings("native"))
    trainer = quiet_trainer(tmp_path, limit_val_batches=1)
    trainer.validate(model, data, verbose=False)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert yolo_lightning.find_damage(tmp_path / "one.ckpt") is None
    with pytest.raises(ValueError, match=r"one\.ckpt cannot be loaded with \{'class_names': \['a'\]\}: "):
        yolo_lightning.YOLOModule.load_from_checkpoint(tmp_path / "one.ckpt", class_names=["a"])
    with pytest.raises(TypeError, match="'lr'"):
        yolo_lightning.YOLOModule.load_from_checkpoint(tmp_path / "one.ckpt", lr=1)


@pytest.mark.parametrize("facts", [None, {"batch_size": 4}, TrainingFacts(0), TrainingFacts("4")])  # type: ignore[arg-type]
def test_facts_of_a_foreign_data_module_are_checked(model: Any, data: Any, facts: Any, tmp_path: Path) -> None:
    data.training_facts = lambda: facts
    with pytest.raises(ValueError, match=r"training_facts\(\) must return TrainingFacts with a batch_size >= 1, got "):
        quiet_trainer(tmp_path, max_epochs=1).fit(model, data)


def test_training_follows_a_validation_of_the_same_module(data: Any, model: Any, tmp_path: Path) -> None:
    for stage in ("fit", "validate"):
        with pytest.raises(
            ValueError, match=rf"trainer\.{stage} needs data: pass a data module, as trainer\.{stage}\("
        ):
            getattr(quiet_trainer(tmp_path), stage)(model)
    quiet_trainer(tmp_path, limit_val_batches=1).validate(model, data, verbose=False)
    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=1, limit_val_batches=1)
    trainer.fit(model, data)
    assert trainer.state.finished
    with pytest.raises(ValueError, match="the checkpoint contains no network of YOLOModule: another module was saved"):
        model.on_load_checkpoint({"state_dict": BoringModel().state_dict()})
    model.freeze()
    with pytest.raises(ValueError, match=r"no parameter of the module requires a gradient: call unfreeze\(\)"):
        trainer.fit(model, data)


def test_callbacks_that_need_other_parts_say_so(model: Any, data: Any, tmp_path: Path) -> None:
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path, max_epochs=1, callbacks=[EpochCheckpoint()])
    with pytest.raises(ValueError, match="EpochCheckpoint needs the callback LastCheckpoint"):
        trainer.fit(model, data)
    late = [EpochCheckpoint(), LastCheckpoint()]
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path, max_epochs=1, callbacks=late, logger=False)
    with pytest.raises(ValueError, match="EpochCheckpoint needs the callback LastCheckpoint before it"):
        trainer.fit(model, data)
    with pytest.raises(ValueError, match=r"must contain instances, got the class EMA: write EMA\(\)"):
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[EMA]).fit(model, data)
    with pytest.raises(ValueError, match=r"HeartbeatFile must be the first of trainer\.callbacks, got EMA before it"):
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[EMA(), HeartbeatFile()]).fit(model, data)
    for callback, missing in (
        (BestCheckpoint(), "best_k_models, best_model_path, .* are missing"),
        (StatusFile(), "best_map_50, findings, minutes, scores are missing"),
        (FinishBy(max_hours=1), "clock, deadline_text, epoch_end_s, plan, progress_s, step_s are missing"),
        (MetricsFile(), "steps, unwritten are missing"),
    ):
        with pytest.raises(ValueError, match=f"state of {type(callback).__name__} must be a result of .*, {missing}"):
            callback.load_state_dict({})
    with pytest.raises(ValueError, match="StallMonitor needs the callback HeartbeatFile before it"):
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[StallMonitor(), HeartbeatFile()]).fit(model, data)
    with pytest.raises(ValueError, match="FrameGallery needs a YOLOModule, got BoringModel"):
        quiet_trainer(tmp_path, callbacks=[FrameGallery()]).validate(BoringModel())
    with pytest.raises(ValueError, match="MeanAP needs a YOLOModule"):
        quiet_trainer(tmp_path, callbacks=[MeanAP()]).validate(BoringModel())
    (tmp_path / "file").write_text("")
    trainer = Trainer(accelerator="cpu", default_root_dir=tmp_path / "file", callbacks=[LastCheckpoint()], logger=False)
    with pytest.raises(ValueError, match=r"trainer\.default_root_dir must be a folder, got the file"):
        trainer.validate(BoringModel())
    data.setup("predict")
    with pytest.raises(ValueError, match="SubmissionWriter needs a DetectionDataModule"):
        quiet_trainer(tmp_path, callbacks=[SubmissionWriter()]).predict(model, data.predict_dataloader())
