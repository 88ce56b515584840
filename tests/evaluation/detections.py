"""Short constructors of predictions and targets, and reference scores of torchmetrics."""

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

from yolo_lightning.data.batch import Prediction, Target

CLASS_NAMES = ["person", "bicycle", "motorcycle", "vehicle"]
SCALARS = ["map", "map_50", "map_75", "mar_1", "mar_10", "mar_100"]
OBJECT = torch.tensor([[0.0, 0.0, 100.0, 100.0]])

Frame = tuple[Prediction, Target]


def prediction(name: str, boxes: Any = (), scores: Any = (), labels: Any = ()) -> Prediction:
    corners = torch.as_tensor(boxes).float().reshape(-1, 4)
    return Prediction(name, corners, torch.as_tensor(scores).float(), torch.as_tensor(labels).long())


def target(name: str, boxes: Any = (), labels: Any = (), month: int = 0) -> Target:
    return Target(name, torch.as_tensor(boxes).float().reshape(-1, 4), torch.as_tensor(labels).long(), month)


def reference(frames: Sequence[Frame]) -> dict[str, Tensor]:
    metric = MeanAveragePrecision(backend="faster_coco_eval", class_metrics=True)
    metric.warn_on_many_detections = False
    metric.update(
        [
            {"boxes": detections.boxes, "scores": detections.scores, "labels": detections.labels}
            for detections, _ in frames
        ],
        [{"boxes": truth.boxes, "labels": truth.labels} for _, truth in frames],
    )
    result: dict[str, Tensor] = metric.compute()
    return result


def random_boxes(count: int, generator: torch.Generator) -> Tensor:
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([300.0, 220.0])
    return torch.cat([corner, corner + 4 + torch.rand(count, 2, generator=generator) * 60], 1)


def random_frames(seed: int, frames: int = 12, months: Sequence[int] = (0,), digits: int = 9) -> list[Frame]:
    """Random frames: class 2 is never annotated, some frames are empty, one has more than 100 detections of a class.

    Scores are rounded to `digits`; few digits produce ties.
    """
    generator = torch.Generator().manual_seed(seed)
    result = []
    for number in range(frames):
        count = int(torch.randint(0, 9, (), generator=generator))
        boxes = random_boxes(count, generator)
        labels = torch.tensor([0, 1, 3])[torch.randint(0, 3, (count,), generator=generator)]
        extra = 230 if number == 3 else int(torch.randint(0, 6, (), generator=generator))
        shift = torch.randn(2 * count, 2, generator=generator).repeat(1, 2) * 3
        detected_boxes = torch.cat([boxes.repeat(2, 1) + shift, random_boxes(extra, generator)])
        classes = torch.randint(0, 2 if number == 3 else 4, (extra,), generator=generator)
        scores = torch.rand(2 * count + extra, generator=generator).round(decimals=digits)
        name, month = str(number), months[number % len(months)]
        result.append(
            (
                prediction(name, detected_boxes, scores, torch.cat([labels, labels, classes])),
                target(name, boxes, labels, month),
            )
        )
    return result


@st.composite
def small_boxes(draw: st.DrawFn) -> list[float]:
    """Boxes on a coarse grid with many equal boxes and IoUs, some with zero or negative area."""
    x_min = draw(st.integers(0, 6))
    y_min = draw(st.integers(0, 6))
    width, height = draw(st.integers(-1, 6)), draw(st.integers(0, 6))
    return [10.0 * x_min, 10.0 * y_min, 10.0 * (x_min + width), 10.0 * (y_min + height)]


@st.composite
def drawn_frames(draw: st.DrawFn) -> list[Frame]:
    """A few frames with few distinct scores and classes."""
    frames = []
    for number in range(draw(st.integers(0, 4))):
        detections = draw(st.lists(st.tuples(small_boxes(), st.integers(1, 4), st.integers(0, 2)), max_size=14))
        truth = draw(st.lists(st.tuples(small_boxes(), st.integers(0, 2)), max_size=7))
        name = str(number)
        frames.append(
            (
                prediction(
                    name,
                    [box for box, _, _ in detections],
                    [s / 4 for _, s, _ in detections],
                    [c for _, _, c in detections],
                ),
                target(name, [box for box, _ in truth], [c for _, c in truth]),
            )
        )
    return frames
