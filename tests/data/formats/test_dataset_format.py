"""The data module with data.yaml and COCO JSON: splits, classes, channels, invalid options."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.helpers.data_module import data_module, set_up
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.index.splits import Split
from yolo_lightning.data.sampling.epoch_order import Sampling
from yolo_lightning.data.storage.storage_settings import StorageSettings

YoloSet = Callable[..., Path]
Make = Callable[..., DetectionDataModule]
BOX = "1 0.5 0.5 0.25 0.5\n"
IMAGES = {f"{folder}/{number}.png": BOX for folder, count in (("train", 6), ("val", 3)) for number in range(count)}
STAGES: dict[str, Split] = {"fit": "train", "validate": "valid", "test": "test", "predict": "predict"}


@pytest.mark.parametrize(
    ("root", "ending"), [("set", ""), ("set/data.yaml", ""), ("a.yaml", ", and this file does not exist")]
)
def test_dataset_of_ultralytics_as_root_names_the_format(tmp_path: Path, root: str, ending: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "data.yaml").touch()
    path = tmp_path / root / ("data.yaml" if root == "set" else "")
    with pytest.raises(ValueError, match=f"is read with data.format {path}{ending}$"):
        DetectionDataModule(str(tmp_path / root))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that builds a data module with a trainer and sets it up."""

    return lambda format, stage="fit", **options: set_up(
        stage, format=str(format), index_root=str(tmp_path / "index"), batch_size=2, **options
    )


@pytest.fixture
def coco_set(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes train.json, val.json and image folders, and returns the root."""

    def build(categories: dict[str, dict[int, str]] | None = None) -> Path:
        for split, count in (("train", 6), ("val", 3)):
            (tmp_path / "coco" / split).mkdir(parents=True)
            for number in range(count):
                pixels = np.random.default_rng(number).integers(0, 256, (48, 64, 3), dtype=np.uint8)
                cv2.imwrite(str(tmp_path / "coco" / split / f"{number}.jpg"), pixels)
            names = (categories or {}).get(split, {3: "cat", 1: "dog"})
            content = {
                "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in range(count)],
                "categories": [{"id": number, "name": name} for number, name in names.items()],
                "annotations": [{"image_id": n, "category_id": 3, "bbox": [1, 2, 30, 40]} for n in range(count)],
            }
            (tmp_path / "coco" / f"{split}.json").write_text(json.dumps(content))
        return tmp_path / "coco"

    return build


UNLABELLED = "TestNoLabels.json"
FILES = {"train": "train.json", "valid": "val.json"}


def gray(file: Path) -> None:
    for path in file.parent.rglob("*.png"):
        cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_GRAYSCALE))


def test_data_yaml_gives_classes_splits_and_batches(yolo_set: YoloSet, make: Make) -> None:
    data = make(yolo_set(IMAGES))
    assert (data.class_names, data.category_ids, data.channels) == (("cat", "dog"), (0, 1), 3)
    assert (len(data.index("train")), len(data.index("valid"))) == (6, 3)
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (2, 3, 64, 64)
    assert set(batch.image_ids) < {f"images/train/{number}" for number in range(6)}
    batch = next(iter(data.val_dataloader()))
    assert (batch.labels.tolist(), batch.months) == ([1, 1], (0, 0))


@pytest.mark.parametrize(("keys", "folder"), [({}, "val"), ({"test": "images/train"}, "train")])
@pytest.mark.parametrize("stage", ["test", "predict"])
def test_test_split_stands_in_for_itself_or_is_that_of_validation(
    yolo_set: YoloSet, make: Make, keys: dict[str, str], folder: str, stage: str
) -> None:
    data = make(yolo_set(IMAGES, **keys), stage)
    assert data.index(STAGES[stage]).image_id(0) == f"images/{folder}/0"


def test_share_held_out_takes_the_place_of_val(yolo_set: YoloSet, make: Make) -> None:
    data = make(yolo_set(IMAGES, val=None), valid_share=0.34)
    train, valid = (set(data.index(split).image_ids()) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (4, 2)
    assert train | valid == {f"images/train/{number}" for number in range(6)}
    assert set(make(data.dataset_format.description.file, "test", valid_share=0.34).index("test").image_ids()) == valid  # type: ignore[attr-defined]


def test_gray_images_are_read_as_one_channel(yolo_set: YoloSet, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    file = yolo_set(IMAGES)
    gray(file)
    with caplog.at_level(logging.INFO):
        assert make(file).channels == 1
    assert "train: all sampled frames are gray, so all are read as gray (data.input.channels)" in caplog.messages
    assert next(iter(make(file).train_dataloader())).images.shape == (2, 1, 64, 64)


def test_one_image_in_colour_is_enough(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set(IMAGES)
    gray(file)
    (file.parent / "images" / "train" / "0.png").write_bytes(b"torn")
    cv2.imwrite(str(file.parent / "images" / "train" / "4.png"), np.full((48, 64, 3), (9, 9, 8), np.uint8))
    assert make(file).channels == 3


def test_damaged_image_does_not_change_the_shape_of_the_input(yolo_set: YoloSet, tmp_path: Path) -> None:
    file = yolo_set(IMAGES)
    (file.parent / "images" / "train" / "0.png").write_bytes(b"torn")
    storage = StorageSettings(index_root=str(tmp_path / "index"))
    data = DetectionDataModule(format=str(file), image_size=128, batch_size=2, storage=storage)
    data.setup("fit")
    assert data.image_size == (96, 128)


@pytest.mark.parametrize(("option", "key", "expected"), [(1, None, 1), (3, 1, 3), (None, 1, 1), (None, 3, 3)])
def test_channels_are_what_the_user_says_else_the_file(
    yolo_set: YoloSet, make: Make, option: Any, key: Any, expected: int
) -> None:
    file = yolo_set(IMAGES, channels=key)
    if expected == 3:
        gray(file)
    data = make(file, channels=option)
    assert next(iter(data.train_dataloader())).images.shape[1] == data.channels == expected


def test_coco_gives_classes_splits_and_batches(coco_set: Callable[..., Path], make: Make) -> None:
    data = make("coco", root=str(coco_set()), **FILES)
    assert (data.class_names, data.category_ids, data.has_submission) == (("dog", "cat"), (1, 3), False)
    assert (len(data.index("train")), len(data.index("valid"))) == (6, 3)
    batch = next(iter(data.val_dataloader()))
    assert (batch.images.shape, batch.labels.tolist(), batch.image_ids) == ((2, 3, 64, 64), [1, 1], ("0", "1"))
    for stage in ("test", "predict"):
        assert len(make("coco", stage, root=str(data.root), **FILES).index(STAGES[stage])) == 3


def test_coco_without_validation_file_scores_what_it_held_out(coco_set: Callable[..., Path], make: Make) -> None:
    options = {"root": str(coco_set()), "train": "train.json", "valid": None, "valid_share": 0.34}
    data = make("coco", **options)
    valid = data.index("valid").image_ids()
    assert (len(data.index("train")), len(valid)) == (4, 2)
    for stage in ("test", "predict"):
        assert make("coco", stage, **options).index(STAGES[stage]).image_ids() == valid
    assert len(make("coco", "test", **options, test="train.json").index("test")) == 6


def test_coco_splits_must_have_the_same_categories(coco_set: Callable[..., Path], make: Make) -> None:
    root = coco_set({"val": {3: "cat", 1: "cow"}})
    with pytest.raises(ValueError, match=r"val\.json: category 1 must be 'dog' as in train\.json, got 'cow'"):
        make("coco", root=str(root), **FILES)


def test_coco_without_its_training_file_can_be_scored(coco_set: Callable[..., Path], make: Make) -> None:
    root = coco_set()
    (root / "train.json").unlink()
    data = make("coco", "validate", root=str(root), **FILES)
    assert (data.class_names, len(data.index("valid"))) == (("dog", "cat"), 3)


def test_frame_interval_is_refused_where_there_are_no_clips(yolo_set: YoloSet, make: Make) -> None:
    with pytest.raises(ValueError, match=r"frame_interval must be 1 for a dataset without clips, got 2; use"):
        make(yolo_set(IMAGES), sampling=Sampling(frame_interval=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": "a.json"},
            r"data\.files\.train must not be set with data\.format .*, which names the splits, got a\.json",
        ),
        ({"predict": "a.json"}, r"data\.files\.predict must not be set .* got a\.json"),
        ({"kind": "zip"}, r"data\.storage\.kind must be one of auto, folder, .* got data\.storage\.kind zip"),
        (
            {"store": "packed"},
            r"data\.storage\.store must be null, .* got data\.storage\.kind auto and data\.storage\.store packed",
        ),
        (
            {"image_folders": ("images",)},
            r"data\.files\.image_folders must be \[\] unless data\.format is coco, got \['images'\]",
        ),
        ({"channels": 2}, r"data\.input\.channels must be 1, 3 or null, got 2"),
    ],
)
def test_option_that_does_not_apply_is_refused(
    yolo_set: YoloSet, make: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(yolo_set(IMAGES), **options)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"data\.root must be the dataset folder, got null \(or set data\.format to a data\.yaml\)"),
        ({"format": "coco"}, r"data\.root must be the dataset folder, got null"),
        ({"format": "voc"}, r"data\.format must be one of ltdv2, coco, or the path of a data\.yaml, got 'voc'"),
        ({"format": "absent.yaml"}, r"absent\.yaml does not exist"),
        ({"root": ".", "channels": 3}, "data.input.channels must be 1 or null with data.format ltdv2"),
    ],
)
def test_dataset_that_is_none_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data_module(**values)


def test_split_that_is_not_named_is_refused_when_it_is_needed(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set(IMAGES, val=None)
    with pytest.raises(ValueError, match=r"must have the key 'val' \(or set data\.split\.valid_share to hold out"):
        make(file)


def test_labels_that_are_nowhere_are_missed_before_training(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set(dict.fromkeys(IMAGES))
    message = r"^data\.format .*data\.yaml 'train': none of the 6 used frames has a box .*such as .*/train/0\.txt"
    with pytest.raises(ValueError, match=message):
        make(file)
    assert len(make(file, "predict").index("predict")) == 3
    assert len(make(file, allow_unlabelled=True).index("train")) == 6


def test_coco_images_in_several_folders_are_found_and_counted(coco_set: Callable[..., Path], make: Make) -> None:
    root = coco_set()
    (root / "images").mkdir()
    (root / "train" / "1.jpg").rename(root / "images" / "1.jpg")
    with pytest.warns(UserWarning, match=r"1 images are not in .*/train and are read .*, such as .*/images/1\.jpg"):
        data = make("coco", root=str(root), **FILES)
    frames = data.open("train")
    assert frames.storage.missing(frames.index.file_names()) == []
    assert all(frames.storage.read(name).size for name in frames.index.file_names())
    assert not data.bad_frames.names


@pytest.mark.parametrize("prefix", ["../train/", "a/../../train/", "{root}/train/"])
def test_coco_names_that_stay_inside_the_dataset_are_read(
    coco_set: Callable[..., Path], make: Make, prefix: str
) -> None:
    root = coco_set()
    (root / "train" / "a").mkdir()
    content = json.loads((root / "train.json").read_text())
    for image in content["images"]:
        image["file_name"] = prefix.format(root=root) + image["file_name"]
    (root / "train.json").write_text(json.dumps(content))
    data = make("coco", root=str(root), **FILES)
    frames = data.open("train")
    assert all(frames.storage.read(name).size for name in frames.index.file_names())
    assert not data.bad_frames.names


@pytest.mark.parametrize("source", ["ltdv2", "coco"])
@pytest.mark.parametrize(
    ("stage", "option"),
    [("fit", "train"), ("fit", "valid"), ("validate", "valid"), ("test", "test")],
)
def test_file_without_a_box_is_refused(look_alike: Path, make: Make, source: str, stage: str, option: str) -> None:
    options = {"root": str(look_alike), "train": "Train.json", "valid": "Valid.json", option: UNLABELLED}
    said = r"none of the 4 used frames has a box.* data\.limits\.allow_unlabelled true"
    message = rf"^data\.files\.{option} {UNLABELLED}: {said}"
    with pytest.raises(ValueError, match=message):
        make(source, stage, **options)
    make(source, stage, **options, allow_unlabelled=True)


@pytest.mark.parametrize(
    ("ids", "written"),
    [(["0012", "12", "a"], ["0012", "12", "a"]), ([7, "8", 2**60], [7, "8", 2**60]), ([7.0, 12, 3], [7, 12, 3])],
)
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_ids_of_a_prediction_are_those_of_the_file(
    coco_set: Callable[..., Path], make: Make, ids: list[Any], written: list[Any], share: float
) -> None:
    root = coco_set()
    content = json.loads((root / "val.json").read_text())
    for image, annotation, identifier in zip(content["images"], content["annotations"], ids, strict=True):
        image["id"] = annotation["image_id"] = identifier
    (root / "val.json").write_text(json.dumps(content))
    options = FILES if share == 1 else {"train": "val.json", "valid": None, "valid_share": share}
    data = make("coco", "predict", root=str(root), **options)
    original_ids = data.predict_original_ids
    assert [str(original_id) for original_id in original_ids] == data.predict_image_ids
    chosen = written if share == 1 else [image_id for image_id in written if str(image_id) in data.predict_image_ids]
    assert [(type(original_id), original_id) for original_id in original_ids] == [
        (type(image_id), image_id) for image_id in chosen
    ]
    assert len(original_ids) == (3 if share == 1 else 1)


def test_ids_of_a_yolo_dataset_are_text(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set({"train/1.png": BOX, "val/2.png": BOX}, path="images/val", train=".", val=".")
    assert make(file, "predict").predict_original_ids == ["2"]


@pytest.mark.filterwarnings("ignore:.*data.limits.quarantine")
def test_boxes_of_the_frames_in_use_count(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set(IMAGES | dict.fromkeys([f"train/{number}.png" for number in range(2, 6)]))
    labelled = ["id=images/train/0", "id=images/train/1"]
    assert len(make(file, quarantine=labelled[:1]).index("train")) == 6
    with pytest.raises(ValueError, match=r"data\.yaml 'train': none of the 4 used frames has a box"):
        make(file, quarantine=labelled)


def test_boxes_outside_of_the_subset_do_not_count(coco_set: Callable[..., Path], make: Make) -> None:
    root = coco_set()
    used = {image for image in make("coco", root=str(root), **FILES, train_fraction=0.5).index("train").image_ids()}
    content = json.loads((root / "train.json").read_text())
    content["annotations"] = [
        annotation for annotation in content["annotations"] if str(annotation["image_id"]) not in used
    ]
    (root / "train.json").write_text(json.dumps(content))
    assert content["annotations"], "the case shows nothing"
    make("coco", root=str(root), **FILES)
    with pytest.raises(ValueError, match=r"^data\.files\.train train\.json: none of the 3 used frames has a box"):
        make("coco", root=str(root), **FILES, train_fraction=0.5)


def test_damaged_images_count_as_bad_frames(yolo_set: YoloSet, make: Make) -> None:
    file = yolo_set(IMAGES)
    (file.parent / "images" / "train" / "3.png").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"left out 1 of at most 1 bad frames: images/train/3\.png"):
        make(file, max_bad_frames=1)
