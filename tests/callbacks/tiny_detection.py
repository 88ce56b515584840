"""Frames, predictions and a module that returns them, for tests of the evaluation callbacks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from tests.callbacks.tiny_training import TinyModule
from yolo_lightning.data.batch import Batch, Prediction, Sample, Target, collate
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.data.formats.ltdv2 import CATEGORY_IDS
from yolo_lightning.data.image_size import ImageSize

HEIGHT, WIDTH, SIZE = 60, 80, 64
HIT = [[10.0, 10.0, 30.0, 50.0]]
MISS = [[50.0, 10.0, 70.0, 50.0]]


def prediction(image_id: str, boxes: Any = HIT, scores: Sequence[float] = (0.9,), label: int = 0) -> Prediction:
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Prediction(image_id, corners, torch.tensor(scores), torch.full((len(corners),), label))


def target(image_id: str, boxes: Any = HIT, label: int = 0, month: int = 0) -> Target:
    corners = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Target(image_id, corners, torch.full((len(corners),), label), month)


def sample(number: int, readable: bool = True) -> Sample:
    """A frame whose gray level is its number."""
    placement = Letterbox.fit(HEIGHT, WIDTH, ImageSize(SIZE, SIZE))
    image = np.full((SIZE, SIZE), 255, np.uint8)
    rows = round(HEIGHT * placement.gain)
    image[placement.top : placement.top + rows] = number
    none, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    return Sample(image, none, labels, f"id-{number}", (HEIGHT, WIDTH), placement, readable)


def frame_batch(*numbers: int, unreadable: Sequence[int] = ()) -> Batch:
    return collate([sample(number, number not in unreadable) for number in numbers])


class DetectionModule(TinyModule):
    """Answers each batch, given by its number, with prepared predictions and targets."""

    def __init__(self, answers: Sequence[tuple[list[Prediction], list[Target]]]) -> None:
        super().__init__()
        self.answers = answers

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        predictions, truth = self.answers[batch_idx]
        return {"preds": predictions, "targets": truth}

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> list[Prediction]:
        return self.answers[batch_idx][0]


class Frames(LightningDataModule):
    """Serves prepared batches for every stage, and knows the ids of the split to predict; LTDv2's unless told."""

    def __init__(
        self, batches: Sequence[Any], image_ids: Sequence[str] = (), category_ids: tuple[int, ...] = CATEGORY_IDS
    ) -> None:
        super().__init__()
        self.batches = list(batches)
        self.predict_image_ids = list(image_ids)
        self.predict_original_ids = [int(image_id) if image_id.isdecimal() else image_id for image_id in image_ids]
        self.category_ids = category_ids
        self.has_submission = category_ids == CATEGORY_IDS

    def test_dataloader(self) -> Any:
        return DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]

    val_dataloader = test_dataloader
    predict_dataloader = test_dataloader


def numbers(count: int) -> list[Tensor]:
    return [torch.tensor(number) for number in range(count)]
