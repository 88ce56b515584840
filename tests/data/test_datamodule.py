"""The data module: its values, its loaders, its worker processes."""

import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tests.helpers.annotations import open_ltdv2
from tests.helpers.data_module import cpu_trainer, data_module, set_up
from yolo_lightning import YOLOModule
from yolo_lightning.data.batch import Batch, collate
from yolo_lightning.data.batch_size import automatic_batch_size
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import TrainingDataset
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.loader import loader_arguments, prepare_worker
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.data.sampling.epoch_order import Sampling
from yolo_lightning.data.sampling.global_batches import limited
from yolo_lightning.data.storage.folder_frames import FolderFrames
from yolo_lightning.data.storage.storage_settings import StorageSettings
from yolo_lightning.data.transforms.augmentation_settings import Augmentation

Split = Callable[..., LabelledFrames]
Make = Callable[..., DetectionDataModule]


@pytest.fixture
def make(look_alike: Path, index_root: Path) -> Make:
    """Builds a data module over the drawn frames, with a trainer, set up for fitting."""

    return lambda stage="fit", **options: set_up(
        stage, **{"root": str(look_alike), "index_root": str(index_root), **options}
    )


def test_loaders_without_a_trainer_yield_the_batches_of_a_fit(make: Make) -> None:
    fitted, alone = make(trainer=cpu_trainer(max_epochs=20)), make()  # mosaic is on in the first epochs of a long fit
    alone.trainer = None

    for loader, other in (
        (alone.train_dataloader(), fitted.train_dataloader()),
        (alone.val_dataloader(), fitted.val_dataloader()),
    ):
        batches = list(loader)
        fit_batches = list(other)
        assert len(batches) == len(fit_batches) > 1
        assert all(
            torch.equal(batch.images, fit_batch.images) for batch, fit_batch in zip(batches, fit_batches, strict=True)
        )


def test_opened_splits_do_not_depend_on_the_working_folder(
    look_alike: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(look_alike.parent)
    relative_index = os.path.relpath(tmp_path / "index")
    data = set_up("validate", look_alike.name, index_root=relative_index, kind="folder")
    monkeypatch.chdir(tmp_path)
    batch = next(iter(data.val_dataloader()))
    assert batch.bad_frames == ()
    data.setup("fit")
    assert next(iter(data.train_dataloader())).bad_frames == ()


def clip_names(index: SplitIndex) -> set[str]:
    return {index.clip_name(number) for number in np.unique(index.clips())}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"image_size": size}, f"data.image_size must be a multiple of 32 and >= 32, got {size}")
            for size in (0, -32, 33)
        ),
        ({"batch_size": 0}, "data.batch_size must be >= 1 or auto, got 0"),
        ({"batch_size": "4"}, "data.batch_size must be an integer or auto, got '4'"),
        ({"loader": 4}, "data.loader must be LoaderSettings, got 4"),
        ({"image_cache_mib": -1}, "data.storage.image_cache_mib must be >= 0, got -1"),
        ({"max_bad_frames": -1}, "data.limits.max_bad_frames must be >= 0, got -1"),
        ({"seed": -1}, "data.seed must be >= 0, got -1"),
        *(
            ({name: share}, f"data.split.{name} must be > 0 and <= 1, got {share}")
            for name in ("train_fraction", "valid_fraction")
            for share in (0.0, 1.01, float("nan"))
        ),
        *(
            ({"valid": None, "valid_share": share}, f"data.split.valid_share must be > 0 and < 1 or null, got {share}")
            for share in (0.0, 1.0, float("nan"))
        ),
    ],
)
def test_value_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        data_module("nowhere", **options)


def test_missing_root_is_refused_before_training(make: Make) -> None:
    with pytest.raises(ValueError, match=r"dataset root /.*/nowhere does not exist"):
        make(root="nowhere")
    with pytest.raises(ValueError, match=r"data\.root must be a text or null, got 123"):
        make(root=123)


@pytest.mark.parametrize(("option", "stage"), [("train", "fit"), ("valid", "validate"), ("test", "test")])
def test_missing_annotation_file_is_refused_before_training(make: Make, option: str, stage: str) -> None:
    with pytest.raises(ValueError, match=r"annotation file .*Absent\.json does not exist"):
        make(stage, **{option: "Absent.json"})


def test_batch_as_large_as_the_split_is_accepted(make: Make) -> None:
    assert len(make(batch_size=16).train_dataloader()) == 1


@pytest.mark.parametrize(
    ("stage", "opened"), [("fit", {"train", "valid"}), ("validate", {"valid"}), ("test", {"test"})]
)
def test_a_stage_opens_only_the_splits_it_needs(make: Make, stage: str, opened: set[str]) -> None:
    assert set(make(stage)._splits) == opened


def test_second_setup_keeps_what_is_open(make: Make) -> None:
    datamodule = make()
    index = datamodule.index("train")
    datamodule.setup("fit")
    assert datamodule.index("train") is index


def test_predict_image_ids_are_those_of_the_file_in_order(make: Make) -> None:
    datamodule = make("predict")
    batches: list[Batch] = list(datamodule.predict_dataloader())
    assert datamodule.has_submission
    assert len(datamodule.predict_image_ids) == 4
    assert [image_id for batch in batches for image_id in batch.image_ids] == datamodule.predict_image_ids
    assert datamodule.predict_original_ids == [int(image_id) for image_id in datamodule.predict_image_ids]


def test_training_epoch_holds_every_frame_once(make: Make) -> None:
    datamodule = make()
    batches: list[Batch] = list(datamodule.train_dataloader())
    image_ids = [image_id for batch in batches for image_id in batch.image_ids]
    assert sorted(image_ids) == sorted(datamodule.index("train").image_ids())
    assert image_ids != datamodule.index("train").image_ids()
    assert {tuple(batch.images.shape) for batch in batches} == {(4, 1, 64, 64)}


@pytest.mark.parametrize(("valid", "valid_share"), [("Valid.json", 0.1), (None, None)])
def test_exactly_one_source_of_validation_frames_is_asked_for(valid: str | None, valid_share: float | None) -> None:
    with pytest.raises(ValueError, match=f"exactly one of .*valid {valid} and .*valid_share {valid_share}"):
        data_module("nowhere", valid=valid, valid_share=valid_share)


def test_without_validation_file_clips_are_held_out(make: Make) -> None:
    datamodule = make(valid=None, valid_share=0.3)
    training, held_out = clip_names(datamodule.index("train")), clip_names(datamodule.index("valid"))
    assert (len(training), len(held_out), len(training | held_out)) == (8, 8, 16)
    assert make("validate", valid=None, valid_share=0.3).index("valid") == datamodule.index("valid")


def test_subset_is_all_that_is_read(make: Make, look_alike: Path, tmp_path: Path) -> None:
    chosen = make(train_fraction=0.5).index("train").file_names()
    for name in chosen:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(look_alike / name, tmp_path / name)
    for name in ("Train.json", "Valid.json"):
        shutil.copy(look_alike / name, tmp_path / name)
    only = {"train_fraction": 0.5, "valid": "Train.json", "valid_fraction": 0.5, "max_bad_frames": 0}
    datamodule = make(
        root=str(tmp_path), index_root=str(tmp_path / "index"), augmentation=Augmentation(mosaic=1), **only
    )
    batches: list[Batch] = list(datamodule.train_dataloader())
    assert all(all(batch.readable) and not batch.bad_frames for batch in batches)
    assert sorted(image_id for batch in batches for image_id in batch.image_ids) == sorted(
        datamodule.index("valid").image_ids()
    )


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_subsets_leave_test_and_prediction_whole(make: Make, stage: str) -> None:
    assert make(stage, train_fraction=0.1, valid_fraction=0.1).index(stage) == make(stage).index(stage)


def test_epoch_is_as_long_as_sampling_says(make: Make) -> None:
    datamodule = make(sampling=Sampling(epoch_frames=6))
    loader = datamodule.train_dataloader()
    assert (len(loader), loader.epoch_batches) == (2, 2)
    first, second = ([image_id for batch in loader for image_id in batch.image_ids] for _ in range(2))
    assert (len(set(first)), len(set(second)), set(first) & set(second)) == (6, 6, set())


def test_batch_larger_than_an_epoch_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"data\.batch_size must be at most the 3 frames of an epoch of .*, got 4"):
        make(sampling=Sampling(epoch_frames=3))


@pytest.mark.parametrize(
    ("frames", "processes", "batch_size"), [(1000, 1, 16), (999, 1, 8), (5, 1, 5), (1999, 2, 8), (0, 1, 1)]
)
def test_automatic_batch_size_follows_the_frames_of_a_process(frames: int, processes: int, batch_size: int) -> None:
    assert automatic_batch_size(frames, processes) == batch_size


def test_automatic_batch_size_is_kept_by_a_resume(make: Make) -> None:
    data = make(batch_size="auto", sampling=Sampling(epoch_frames=6))
    facts = data.training_facts()
    assert (facts.batch_size, facts.has_auto_batch_size, facts.epoch_batches) == (6, True, 1)
    data.load_state_dict(data.state_dict() | {"batch_size": 4})
    assert data.train_dataloader().batch_sampler.batch_size == 4
    assert make("validate", batch_size="auto").batch_size == 16


def test_log_says_what_is_used_of_each_split(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        make(train_fraction=0.5, batch_size=2, sampling=Sampling(frame_interval=4))
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        line.startswith("train: Train.json (")
        and line.endswith("): 8 of 16 frames, 8 of 16 clips, 8 months from 202005 to 202104")
        for line in lines
    )
    assert "train: epoch: 2 of 8 frames" in lines


def test_checkpoint_of_another_subset_is_refused(make: Make) -> None:
    state = make(train_fraction=0.5).state_dict()
    make(train_fraction=0.5).load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"other training data.*data\.split\.train_fraction and data\.split\.valid_share"
    ):
        make().load_state_dict(state)


def test_frames_with_more_objects_than_detections_are_counted(make: Make) -> None:
    data = make()
    objects = np.diff(data.index("valid").box_offsets())
    most = int(objects.max())
    assert data.describe_crowded_frames("fit", most) == []
    (line,) = data.describe_crowded_frames("validate", most - 1)
    crowded, fullest = int((objects == most).sum()), data.index("valid").file_name(int(objects.argmax()))
    recall = 1 - crowded / objects.sum()
    assert line == (
        f"valid: {crowded} of 8 frames have more objects than model.detections.max_detections {most - 1}, such as "
        f"{fullest} with {most}. The recall is therefore at most {recall:.2f}; {most} scores all objects."
    )


def test_frames_are_read_from_the_named_storage(make: Make, look_alike: Path, tmp_path: Path) -> None:
    shutil.copytree(look_alike, tmp_path / "data")
    with pytest.raises(ValueError, match=r"frames\.zip"):
        make(root=str(tmp_path / "data"), kind="zip")
    with pytest.raises(ValueError, match="elsewhere"):
        make(root=str(tmp_path / "data"), kind="packed", store=str(tmp_path / "elsewhere"))


def test_test_scores_the_validation_file_unless_told_otherwise(make: Make) -> None:
    datamodule = make("test")
    batches: list[Batch] = list(datamodule.test_dataloader())
    assert [image_id for batch in batches for image_id in batch.image_ids] == datamodule.index("test").image_ids()
    assert len(datamodule.index("test")) == 8


@pytest.mark.parametrize(
    ("max_epochs", "close", "mosaic_epochs"),
    [
        *((30, 10, 20), (5, 10, 0), (-1, 10, 0), (12, 0, 12)),
        *((200, "auto", 190), (100, "auto", 90), (30, "auto", 27), (11, "auto", 9), (3, "auto", 2), (1, "auto", 0)),
        (-1, "auto", 0),
    ],
)
def test_mosaic_closes_before_the_last_epochs(make: Make, max_epochs: int, close: Any, mosaic_epochs: int) -> None:
    trainer = cpu_trainer(max_epochs=max_epochs)
    loader = make(trainer=trainer, augmentation=Augmentation(close_mosaic_epochs=close)).train_dataloader()
    assert loader.mosaic_epochs is not None
    assert loader.mosaic_epochs() == mosaic_epochs


def test_automatic_number_of_epochs_without_mosaic_is_printed_and_follows_the_trainer(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = cpu_trainer(max_epochs=30)
    augmentation = Augmentation(close_mosaic_epochs="auto")
    with caplog.at_level(logging.INFO):
        loader = make(trainer=trainer, augmentation=augmentation).train_dataloader()
    assert "data.augmentation.close_mosaic_epochs auto: 3 of 30 epochs" in caplog.messages
    trainer.fit_loop.max_epochs = 60  # as `FinishBy` sets it
    assert loader.mosaic_epochs is not None
    assert loader.mosaic_epochs() == 54


def test_training_loader_knows_the_limit_of_the_trainer(make: Make) -> None:
    assert make(trainer=cpu_trainer(limit_train_batches=3)).train_dataloader().epoch_batches == 3


def test_interval_of_validations_can_be_a_duration(make: Make) -> None:
    trainer = cpu_trainer()
    del trainer.val_check_interval  # as in Lightning's Trainer(val_check_interval="00:01:00:00")
    make(trainer=trainer)


def test_training_loader_begins_at_the_epoch_of_the_trainer(make: Make) -> None:
    trainer = cpu_trainer(max_epochs=9)
    trainer.fit_loop.epoch_progress.current.processed = 3
    assert make(trainer=trainer).train_dataloader().state_dict()["epoch"] == 3


@pytest.mark.parametrize("multiprocessing_context", ["spawn", "forkserver"])
@pytest.mark.parametrize("split", ["train", "val", "test", "predict"])
def test_workers_are_started_as_told(make: Make, split: str, multiprocessing_context: Any) -> None:
    stage = {"train": "fit", "val": "validate"}.get(split, split)
    datamodule = make(stage, loader=LoaderSettings(num_workers=2, multiprocessing_context=multiprocessing_context))
    loader = getattr(datamodule, f"{split}_dataloader")()
    assert loader.num_workers == 2
    assert loader.multiprocessing_context.get_start_method() == multiprocessing_context
    assert loader.worker_init_fn is prepare_worker


@pytest.mark.parametrize(("asked", "kept"), [(True, True), (False, False)])
def test_only_training_workers_are_persistent(make: Make, asked: bool, kept: bool) -> None:
    datamodule = make(loader=LoaderSettings(num_workers=2, persistent_workers=asked))
    assert datamodule.train_dataloader().persistent_workers is kept
    assert datamodule.val_dataloader().persistent_workers is False


@pytest.mark.parametrize(
    ("num_workers", "limit", "expected"), [("auto", 10**9, 0), ("auto", 1, 3), (2, 10**9, 2)], ids=str
)
def test_small_splits_are_evaluated_without_workers(
    make: Make, monkeypatch: pytest.MonkeyPatch, num_workers: int | Literal["auto"], limit: int, expected: int
) -> None:
    monkeypatch.setattr("yolo_lightning.data.loader.VALUES_WITHOUT_WORKERS", limit)
    monkeypatch.setattr("yolo_lightning.data.loader.worker_count", lambda number: 3 if number == "auto" else number)
    datamodule = make(loader=LoaderSettings(num_workers=num_workers))
    assert datamodule.val_dataloader().num_workers == expected
    assert datamodule.train_dataloader().num_workers == (3 if num_workers == "auto" else num_workers)


@pytest.mark.parametrize(
    ("chosen", "on_gpu", "pinned"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_memory_is_pinned_on_a_gpu_unless_told_otherwise(chosen: bool | None, on_gpu: bool, pinned: bool) -> None:
    assert loader_arguments(LoaderSettings(pin_memory=chosen), on_gpu=on_gpu, persistent=True)["pin_memory"] is pinned


@pytest.mark.parametrize("split", ["train", "val"])
def test_iterating_does_not_draw_from_torchs_global_generator(make: Make, split: str) -> None:
    loader = getattr(make(), f"{split}_dataloader")()
    before = torch.get_rng_state()
    batches = sum(1 for _ in loader)
    assert batches > 0
    assert torch.equal(torch.get_rng_state(), before)


def no_fork() -> int:
    raise AssertionError("a worker was forked")


def test_spawned_workers_prepare_the_same_batches_without_a_fork(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[Batch] = list(islice(make(batch_size=8).train_dataloader(), 2))
    monkeypatch.setattr(os, "fork", no_fork)
    loader = make(batch_size=8, loader=LoaderSettings(num_workers=2, persistent_workers=False)).train_dataloader()
    batches: list[Batch] = list(loader)
    for here, there in zip(expected, batches, strict=True):
        assert here.image_ids == there.image_ids
        assert torch.equal(here.images, there.images)
        assert torch.equal(here.boxes, there.boxes)


WORK = """
import pickle, sys

with open(sys.argv[1], "rb") as file:
    dataset, prepare_worker, collate = pickle.load(file)

prepare_worker(0)
collate([dataset[0, index] for index in range(len(dataset))])
print(*{name.partition(".")[0] for name in sys.modules})
"""
"""What a worker does, in a bare interpreter: unpickle, prepare, collate."""


def test_worker_imports_no_large_library(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    frames = LabelledFrames(open_ltdv2(look_alike / "Train.json", index_root), FolderFrames(look_alike))
    dataset = TrainingDataset(frames, 64, Augmentation(photometric=1, inversion=1), seed=0)
    (tmp_path / "worker.pickle").write_bytes(pickle.dumps((dataset, prepare_worker, collate)))
    words = [sys.executable, "-c", WORK, str(tmp_path / "worker.pickle")]
    imported = set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert "yolo_lightning" in imported
    assert imported.isdisjoint({"lightning", "ultralytics", "torchmetrics", "matplotlib", "jsonargparse", "callbacks"})
    assert "albumentations" not in imported


def test_frame_torn_while_training_is_named_by_its_batch(split: Split, tmp_path: Path, make: Make) -> None:
    frames = split([[[1, 2, 30, 20]]] * 4)
    datamodule = make(root=str(tmp_path), index_root=str(tmp_path / "index"), valid="Train.json", max_bad_frames=0)
    (tmp_path / frames.index.file_name(2)).write_bytes(b"")
    batch: Batch = next(iter(datamodule.val_dataloader()))
    assert batch.readable == (True, True, False, True)
    with pytest.raises(ValueError, match=r"1 frames cannot be used.*image_0002\.jpg: the file is empty"):
        datamodule.on_before_batch_transfer(batch, 0)


@pytest.mark.parametrize(
    ("limit", "batches"), [(None, 10), (1.0, 10), (0.5, 5), (0.25, 2), (0.0, 0), (3, 3), (10, 10), (99, 10), (0, 0)]
)
def test_limit_counts_batches_or_is_a_share(limit: float | int | None, batches: int) -> None:
    assert limited(10, limit) == batches


def test_index_goes_to_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert StorageSettings().index_folder == tmp_path / "yolo_lightning" / "index"
    assert data_module("nowhere").storage.index_folder == tmp_path / "yolo_lightning" / "index"


@pytest.mark.parametrize("hook", ["on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"])
def test_module_overrides_no_batch_hook(hook: str) -> None:
    assert hook not in vars(YOLOModule), "Lightning would warn in every fit with a data module"


class TestInputOfOneNumber:
    """The drawn frames have 96 x 64 pixels."""

    def test_has_the_shape_of_the_frames(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        data = make(image_size=96)
        assert data.image_size == data.training_facts().image_size == (64, 96)
        for loader in (data.train_dataloader(), data.val_dataloader()):
            assert next(iter(loader)).images.shape[-2:] == (64, 96)
        line = "data.image_size 96: input of 96 x 64, the shape of the frames, such as 96 x 64; [96, 96] is the square"
        assert caplog.text.count("data.image_size 96") == caplog.text.count(f"train: {line}") == 1

    def test_two_numbers_are_the_shape(self, make: Make) -> None:
        assert make(image_size=[96, 96]).image_size == (96, 96)

    def test_is_square_if_the_frames_of_two_splits_differ(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        shapes = iter([[(64, 96)], [(96, 64), (48, 72)]])
        monkeypatch.setattr(SplitIndex, "distinct_shapes", lambda _: next(shapes))
        assert make(image_size=96).image_size == (96, 96)
        assert "valid: data.image_size 96: input of 96 x 96, frames of several shapes" in caplog.text

    def test_follows_the_stride_of_the_graph(self, make: Make) -> None:
        trainer = cpu_trainer()
        trainer.strategy._lightning_module = YOLOModule("yolov8n-p6")
        assert make(trainer=trainer, image_size=192).image_size == (128, 192)

    @pytest.mark.parametrize(
        ("saved", "size"),
        [
            ({"image_size": 96}, (96, 96)),
            ({}, (96, 96)),  # the state of a version in which one number was a square
            ({"image_size": [64, 96]}, (64, 96)),
            ({"image_size": 128}, (64, 96)),  # the run continues with another size
        ],
        ids=str,
    )
    def test_is_that_of_the_checkpoint(self, make: Make, saved: dict[str, Any], size: tuple[int, int]) -> None:
        data = make(image_size=96)
        data.load_state_dict(saved)
        assert data.image_size == size
        data.open("valid")
        assert data.image_size == size
        assert data.state_dict()["image_size"] == data.image_size.plain()
