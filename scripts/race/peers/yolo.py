"""Network, loss and data of the peers that have none of their own: those of Ultralytics, in plain PyTorch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import torch
from torch import Tensor
from torch.utils.data import Dataset
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils.loss import v8DetectionLoss

from race.systems import Training

Sample = tuple[Tensor, Tensor]
"""Image `(3, size, size)` float32 from 0 to 1; boxes `(N, 5)` of class and xywh, normalized to the image."""


class Frames(Dataset[Sample]):
    """The training frames, resized to squares, without augmentation."""

    def __init__(self, training: Training) -> None:
        self.size = training.image_size
        self.paths = sorted((Path(training.yolo_data).parent / "images" / "train").iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Sample:
        path = self.paths[number]
        image = cv2.imread(str(path))
        assert image is not None, path
        image = cv2.resize(image, (self.size, self.size))
        labels = path.parents[2] / "labels" / "train" / f"{path.stem}.txt"
        rows = [[float(word) for word in line.split()] for line in labels.read_text().splitlines()]
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255, torch.tensor(rows).reshape(-1, 5)


def collate(samples: list[Sample]) -> dict[str, Tensor]:
    """Return a batch as the loss of Ultralytics reads it."""
    boxes = torch.cat([boxes for _, boxes in samples])
    owners = torch.cat([torch.full((len(boxes),), float(number)) for number, (_, boxes) in enumerate(samples)])
    images = torch.stack([image for image, _ in samples])
    return {"img": images, "batch_idx": owners, "cls": boxes[:, :1], "bboxes": boxes[:, 1:]}


def network(classes: int = 4) -> Any:
    """Return YOLOv8n with random weights."""
    graph = DetectionModel("yolov8n.yaml", nc=classes, verbose=False)
    graph.args = SimpleNamespace(box=7.5, cls=0.5, dfl=1.5, epochs=1)
    return graph


def total_loss(criterion: v8DetectionLoss, outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the sum of the three losses."""
    losses, _ = criterion.loss(outputs, batch)
    total: Tensor = losses.sum()
    return total


def optimizer(parameters: Any) -> torch.optim.SGD:
    """Return SGD with the learning rate and the momentum of Ultralytics."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.937, nesterov=True)
