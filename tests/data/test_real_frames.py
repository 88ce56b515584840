"""The data room on 969 real thermal frames in LTDv2's layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.annotations import assert_boxes_of_the_json, open_ltdv2
from tests.helpers.data_module import cpu_trainer, set_up
from yolo_lightning.data.batch import Batch, targets
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.formats.frame_checks import BadFrames, check_frames
from yolo_lightning.data.storage.folder_frames import FolderFrames

FILES = ("Train.json", "Valid.json", "TestNoLabels.json")
BATCH_SIZE = 8


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture
def datamodule(real_frames: Path, index_root: Path) -> DetectionDataModule:
    options = {"image_size": 320, "batch_size": BATCH_SIZE, "max_bad_frames": 0}
    return set_up("fit", str(real_frames), cpu_trainer(max_epochs=20), index_root=str(index_root), **options)


@pytest.mark.parametrize("name", FILES)
def test_every_annotation_file_opens(real_frames: Path, index_root: Path, name: str) -> None:
    content = read(real_frames / name)
    index = open_ltdv2(real_frames / name, index_root)
    assert index.image_ids() == [str(image["id"]) for image in content["images"]]
    assert index.facts.kept + index.facts.dropped == len(content.get("annotations", []))
    assert index.facts.kept == sum(len(index.labels(position)) for position in range(len(index)))


@pytest.mark.parametrize("name", FILES)
def test_no_frame_is_missing_or_of_another_size(real_frames: Path, index_root: Path, name: str) -> None:
    bad_frames = BadFrames(0)
    check_frames(open_ltdv2(real_frames / name, index_root), FolderFrames(real_frames), bad_frames)
    assert bad_frames.names == set()


def test_training_batch_holds_objects_inside_the_input(datamodule: DetectionDataModule) -> None:
    batch: Batch = next(iter(datamodule.train_dataloader()))
    assert (batch.images.shape, batch.images.dtype) == ((BATCH_SIZE, 1, 256, 320), torch.uint8)
    assert len(batch.boxes) > 0
    assert bool((batch.boxes[:, :2] - batch.boxes[:, 2:] / 2 >= -1e-5).all())
    assert bool((batch.boxes[:, :2] + batch.boxes[:, 2:] / 2 <= 1 + 1e-5).all())
    assert set(batch.labels.tolist()) <= {0, 1, 2, 3}
    assert batch.bad_frames == ()


def test_evaluation_batch_gives_back_the_boxes_of_the_json(datamodule: DetectionDataModule, real_frames: Path) -> None:
    content = read(real_frames / "Valid.json")
    batch: Batch = next(iter(datamodule.val_dataloader()))
    actual_targets = targets(batch)
    assert [target.image_id for target in actual_targets] == [
        str(image["id"]) for image in content["images"][:BATCH_SIZE]
    ]
    assert_boxes_of_the_json(actual_targets, content["annotations"])
