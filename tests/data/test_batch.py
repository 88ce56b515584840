"""Batches, targets and predictions."""

import copy
import json
import pickle
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device

from tests.helpers.annotations import assert_boxes_of_the_json, open_ltdv2
from tests.helpers.meta_device import META, MetaDevice
from yolo_lightning.data.batch import Sample, check_batch, collate, targets
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.labelled_frames import LabelledFrames
from yolo_lightning.data.storage.folder_frames import FolderFrames

HEIGHT, WIDTH = 32, 64


def sample(
    image_id: str, boxes: list[list[float]], readable: bool = True, bad_frames: tuple[str, ...] = (), level: int = 0
) -> Sample:
    return Sample(
        image=np.full((HEIGHT, WIDTH), level, dtype=np.uint8),
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.arange(len(boxes), dtype=np.int64),
        image_id=image_id,
        frame_shape=(HEIGHT, WIDTH),
        letterbox=Letterbox(1.0, 0, 0),
        readable=readable,
        bad_frames=bad_frames,
    )


def three_samples() -> list[Sample]:
    return [
        sample("20200502114223915", [[0, 0, 32, 16], [16, 8, 48, 24]], level=10),
        sample("20200502114223916", [], level=20),
        sample("20200502114223917", [[32, 16, 64, 32]], level=30),
    ]


def test_collate_stacks_images_boxes_and_facts() -> None:
    batch = collate(three_samples())
    assert (batch.images.shape, batch.images.dtype) == ((3, 1, HEIGHT, WIDTH), torch.uint8)
    assert batch.images[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert batch.boxes.dtype == torch.float32
    assert batch.boxes.tolist() == [[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]
    assert batch.sample_index.tolist() == [0, 0, 2]
    assert batch.labels.tolist() == [0, 1, 0]
    assert batch.sample_index.dtype == batch.labels.dtype == torch.int64
    assert len(batch) == 3
    assert batch.image_ids == ("20200502114223915", "20200502114223916", "20200502114223917")
    assert batch.frame_shapes == ((HEIGHT, WIDTH),) * 3
    assert batch.letterboxes == (Letterbox(1.0, 0, 0),) * 3


def test_collate_of_frames_without_boxes_has_empty_tensors() -> None:
    batch = collate([sample("1", []), sample("2", [])])
    assert (batch.boxes.shape, batch.labels.shape, batch.sample_index.shape) == ((0, 4), (0,), (0,))
    assert (batch.boxes.dtype, batch.labels.dtype, batch.sample_index.dtype) == (
        torch.float32,
        torch.int64,
        torch.int64,
    )


def test_collate_gathers_bad_frames_of_all_samples() -> None:
    batch = collate(
        [sample("1", [], bad_frames=("a: x", "b: y")), sample("2", []), sample("3", [], bad_frames=("c: z",))]
    )
    assert batch.bad_frames == ("a: x", "b: y", "c: z")


def test_targets_leave_out_unreadable_frames() -> None:
    batch = collate([sample("1", [[0, 0, 4, 4]]), sample("2", [], readable=False), sample("3", [[8, 8, 16, 16]])])
    assert batch.readable_positions() == [0, 2]
    actual_targets = targets(batch)
    assert [target.image_id for target in actual_targets] == ["1", "3"]
    assert actual_targets[1].boxes.tolist() == [[8, 8, 16, 16]]


def test_targets_of_a_frame_without_boxes_are_empty() -> None:
    target = targets(collate(three_samples()))[1]
    assert (target.image_id, target.boxes.shape, target.labels.shape) == ("20200502114223916", (0, 4), (0,))


@pytest.mark.parametrize("image_size", [64, 96, 640])
def test_targets_of_evaluation_samples_are_the_boxes_of_the_json(
    look_alike: Path, index_root: Path, image_size: int
) -> None:
    content = json.loads((look_alike / "Valid.json").read_text())
    dataset = EvaluationDataset(
        LabelledFrames(open_ltdv2(look_alike / "Valid.json", index_root), FolderFrames(look_alike)), image_size
    )
    actual_targets = targets(collate([dataset[position] for position in range(len(dataset))]))
    assert [target.image_id for target in actual_targets] == [str(image["id"]) for image in content["images"]]
    assert_boxes_of_the_json(actual_targets, content["annotations"])


def test_to_moves_every_tensor_and_keeps_the_rest() -> None:
    batch = collate(three_samples())
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in (moved.images, moved.boxes, moved.labels, moved.sample_index)} == {"meta"}
    assert moved.image_ids == batch.image_ids
    assert moved.letterboxes == batch.letterboxes


def test_worker_sends_only_the_images_in_shared_memory() -> None:
    batch = collate(three_samples())
    received = pickle.loads(ForkingPickler.dumps(batch))
    assert received.images.is_shared()
    for name in ("boxes", "labels", "sample_index"):
        assert not getattr(received, name).is_shared()
        assert not getattr(batch, name).is_shared()
    for name in batch.__struct_fields__:
        value, expected = getattr(received, name), getattr(batch, name)
        assert torch.equal(value, expected) if isinstance(value, torch.Tensor) else value == expected


def test_batch_of_another_device_can_be_copied() -> None:
    batch = collate(three_samples()).to("meta")
    assert copy.deepcopy(batch).boxes.shape == batch.boxes.shape


def test_month_of_a_sample_reaches_its_target() -> None:
    samples = [replace(sample(name, []), month=month) for name, month in (("1", 202005), ("2", 0), ("3", 202101))]
    batch = collate(samples)
    assert [target.month for target in targets(batch)] == [202005, 0, 202101]
    assert [target.month for target in targets(msgspec.structs.replace(batch, months=()))] == [0, 0, 0]


@pytest.mark.parametrize("is_pinned", [True, False])
def test_transfer_blocks_unless_the_batch_is_pinned(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: is_pinned)
    with MetaDevice(images=3) as device:
        move_data_to_device(collate(three_samples()), META)  # as Lightning does
    assert device.requests.queued_uploads == (4 if is_pinned else 0)
    assert device.requests.uploads.total() == (0 if is_pinned else 4)


def test_batch_of_a_foreign_loader_is_checked() -> None:
    batch = collate(three_samples())
    check_batch(batch, 3)
    check_batch(msgspec.structs.replace(batch, labels=batch.labels + 9), None)
    changes = {
        "images": (batch.images.double(), r"Batch\.images must be uint8, or float32 from 0 to 255, got torch\.float64"),
        "labels": (batch.labels + 9, r"Batch\.labels must be from 0 to 2, got 9 to"),
        "boxes": (batch.boxes * 640, r"Batch\.boxes must be from 0 to 1, got"),
        "sample_index": (batch.sample_index + 3, r"Batch\.sample_index must be from 0 to 2, got"),
        "readable": ((), r"Batch\.readable must have one value for each of the 3 image_ids, got 0"),
        "months": ((1,), r"Batch\.months must have one value for each of the 3 image_ids, got 1"),
    }
    further_changes = {
        "images": (batch.images.float() / 255 + 0.5, r"Batch\.images must be uint8, or float32 from 0 to 255, got"),
        "labels": (batch.labels[:-1], r"Batch\.boxes must be a tensor of shape"),
        "boxes": (batch.boxes.numpy(), r"Batch\.boxes must be a tensor of shape .* got ndarray"),
        "sample_index": (batch.sample_index.flip(0), r"Batch\.sample_index must be ascending"),
        "image_ids": (("a",), r"Batch\.images must be a tensor of shape \(1, "),
    }
    for name, (value, message) in [*changes.items(), *further_changes.items()]:
        with pytest.raises(ValueError, match=message):
            check_batch(msgspec.structs.replace(batch, **{name: value}), 3)
    with pytest.raises(ValueError, match=r"must yield yolo_lightning\.data\.batch\.Batch, .* got list"):
        check_batch([batch.images], 3)
