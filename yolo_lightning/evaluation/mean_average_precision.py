"""Mean average precision as a torchmetrics metric."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from yolo_lightning.data.array_types import Int64Array
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.average_precision import DETECTION_LIMITS, NO_GROUND_TRUTH, PartScores, RankedDetections
from yolo_lightning.evaluation.matching import ALL_AREAS, IOU_THRESHOLDS, MAX_THRESHOLDS, BoxTable, match_boxes
from yolo_lightning.utils.choices import check_range, check_types, checked_arguments

AREA_RANGES = {
    "all": ALL_AREAS,
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Smallest and largest area of an object in square pixels, both inclusive."""

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
Frame = dict[str, Tensor]
STATES = {
    "detection_boxes": torch.float32,
    "detection_scores": torch.float32,
    "detection_labels": torch.int64,
    "detection_counts": torch.int64,
    "object_boxes": torch.float32,
    "object_labels": torch.int64,
    "object_areas": torch.float32,
    "object_crowds": torch.uint8,
    "object_counts": torch.int64,
}
"""States and their dtypes. Boxes are flattened, because ranks gather tensors of equal dimensions only."""


class MeanAveragePrecision(Metric):
    """COCO's mean average precision and recall of boxes; equal to torchmetrics' `MeanAveragePrecision`, but faster.

    Inputs and results are those of `torchmetrics.detection.MeanAveragePrecision` with its default arguments; boxes are
    corners (x, y, x, y) in pixels. Boxes and scores are stored as float32 on the device of the metric;
    `update` does not wait for the device.

    Args:
        iou_thresholds: Minimum IoUs of a correct detection, 1 to 16 values; None is 0.50, 0.55, ..., 0.95.
        max_detection_thresholds: Three maximum numbers of detections per image and class; None is 1, 10, 100.
        class_metrics: Whether to return the scores per class.
        options: Arguments of `torchmetrics.Metric`.

    Raises:
        UserError: If an argument is not allowed.

    Example:
        >>> from torch import tensor
        >>> metric = MeanAveragePrecision()
        >>> found = {"boxes": tensor([[0.0, 0, 60, 100]]), "scores": tensor([0.9]), "labels": tensor([0])}
        >>> metric.update([found], [{"boxes": tensor([[0.0, 0, 100, 100]]), "labels": tensor([0])}])
        >>> scores = metric.compute()
        >>> f"{scores['map']:.1f} {scores['map_50']:.1f} {scores['map_75']:.1f}"
        '0.2 1.0 0.0'
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    @checked_arguments()
    def __init__(
        self,
        iou_thresholds: list[float] | None = None,
        max_detection_thresholds: list[int] | None = None,
        class_metrics: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.class_metrics = class_metrics
        self.iou_thresholds = list(IOU_THRESHOLDS) if iou_thresholds is None else list(iou_thresholds)
        self.max_detection_thresholds = sorted(max_detection_thresholds or DETECTION_LIMITS)
        if not 1 <= len(self.iou_thresholds) <= MAX_THRESHOLDS:
            raise UserError(f"iou_thresholds must contain 1 to {MAX_THRESHOLDS} values, got {iou_thresholds!r}")
        for one in self.iou_thresholds:
            check_range("iou_thresholds", one, ">= 0", "<= 1")
        if len(self.max_detection_thresholds) != 3 or self.max_detection_thresholds[0] < 1:
            raise UserError(f"max_detection_thresholds must contain 3 numbers >= 1, got {max_detection_thresholds!r}")
        for name in STATES:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, preds: Sequence[Frame], target: Sequence[Frame]) -> None:
        """Add images.

        Args:
            preds: For each image a dictionary with `boxes` `(N, 4)`, `scores` `(N,)` and integer `labels` `(N,)`.
            target: For each of the same images `boxes` `(M, 4)` and integer `labels` `(M,)`; optionally `iscrowd`
                `(M,)`, whether a box surrounds a crowd, and `area` `(M,)` in square pixels, by which objects are
                small, medium or large (default: the area of the box).

        Raises:
            UserError: If a key is missing, the tensors of an image have different lengths, or labels are no integers.
        """
        hints = dict.fromkeys(("preds", "target"), list[dict[str, Tensor]])
        check_types("MeanAveragePrecision.update", hints, {"preds": preds, "target": target})
        if len(preds) != len(target):
            raise UserError(f"preds and target must have the same length, got {len(preds)} and {len(target)}")
        _check(preds, "preds", ("scores", "labels"))
        _check(target, "target", ("labels",), ("iscrowd", "area"))
        if not preds:
            return
        self._add("detection_boxes", [_sized(one["boxes"]) for one in preds])
        self._add("detection_scores", [one["scores"] for one in preds])
        self._add("detection_labels", [one["labels"] for one in preds])
        self._add("detection_counts", [torch.tensor([len(one["labels"]) for one in preds])])
        self._add("object_boxes", [_sized(one["boxes"]) for one in target])
        self._add("object_labels", [one["labels"] for one in target])
        for name, key in (("object_areas", "area"), ("object_crowds", "iscrowd")):
            self._add(name, [one[key] if key in one else torch.zeros_like(one["labels"]) for one in target])
        self._add("object_counts", [torch.tensor([len(one["labels"]) for one in target])])

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all images, 0 to 1; -1 without annotated objects.

        The keys are `map`, `map_50`, `map_75`, `map_small`, `map_medium`, `map_large`, `mar_1`, `mar_10`, `mar_100`,
        `mar_small`, `mar_medium`, `mar_large`, `map_per_class` and `mar_100_per_class` (-1 without `class_metrics`),
        and `classes`, the labels to which these belong. The numbers in `mar_*` are the `max_detection_thresholds`.
        """
        found, truth = self._table("detection"), self._table("object")
        joined = np.concatenate([found.labels, truth.labels])
        classes, labels = np.unique(joined, return_inverse=True)
        scores = self._scores(found, truth, labels.reshape(-1))
        result = self._named(scores)
        by_class = (torch.tensor([NO_GROUND_TRUTH]),) * 2
        if self.class_metrics:
            by_class = torch.from_numpy(scores[0].precision.mean(0)), torch.from_numpy(scores[0].recall[-1].mean(0))
        names = "map_per_class", f"mar_{self.max_detection_thresholds[-1]}_per_class"
        result |= {name: values.float() for name, values in zip(names, by_class, strict=True)}
        return result | {"classes": torch.from_numpy(classes.astype(np.int32))}

    def sync(self, *arguments: Any, **options: Any) -> None:
        """Gather the images of all ranks; a rank may have no images."""
        for name, dtype in STATES.items():
            # Otherwise torchmetrics would gather a float32 tensor from a rank without images.
            if not len(getattr(self, name)):
                setattr(self, name, [torch.zeros(0, dtype=dtype, device=self.device)])
        super().sync(*arguments, **options)

    def _add(self, state: str, parts: list[Tensor]) -> None:
        getattr(self, state).append(torch.cat(parts).to(self.device, STATES[state], non_blocking=True))

    def _table(self, kind: str) -> BoxTable:
        def column(name: str) -> Any:
            state = getattr(self, f"{kind}_{name}")
            joined = state if isinstance(state, Tensor) else torch.cat(state) if state else None
            empty = torch.zeros(0, dtype=STATES[f"{kind}_{name}"])
            return (empty if joined is None else joined).detach().cpu().numpy()

        boxes, labels, counts = column("boxes").reshape(-1, 4), column("labels"), column("counts")
        if kind == "detection":
            _check_finite("preds", np.column_stack([boxes, column("scores")]))
            return BoxTable(boxes, labels, counts, scores=column("scores"))
        areas, crowds = column("areas").astype(np.float64), column("crowds").astype(np.bool_)
        _check_finite("target", np.column_stack([boxes, areas]), least=0)
        return BoxTable(boxes, labels, counts, areas=areas, crowds=crowds)

    def _scores(self, found: BoxTable, truth: BoxTable, labels: Int64Array) -> list[PartScores]:
        """Return the scores per area range with the class indices of all detections, followed by those of objects."""
        limits, thresholds = self.max_detection_thresholds, self.iou_thresholds
        detections = replace(found, labels=labels[: len(found.labels)])
        objects = replace(truth, labels=labels[len(found.labels) :])
        classes = int(labels.max(initial=-1)) + 1
        matches = match_boxes(detections, objects, classes, thresholds, limits[-1], tuple(AREA_RANGES.values()))
        assert detections.scores is not None
        own, of_objects = matches.groups % max(classes, 1), matches.object_groups % max(classes, 1)
        order = np.lexsort((-detections.scores[matches.order], own))
        own, ranks, owners = own[order], matches.ranks[order], np.zeros(len(order), np.int32)
        scores = []
        for hits, ignored, counted in zip(matches.hits, matches.ignored, matches.counted, strict=True):
            annotated = np.bincount(of_objects[counted], minlength=classes)[None]
            ranked = RankedDetections(1, annotated, own, owners, ranks, hits[order], ignored[order])
            scores.append(ranked.scores(len(thresholds), limits))
        return scores

    def _named(self, scores: list[PartScores]) -> dict[str, Tensor]:
        """Return the scores of all classes under torchmetrics' names."""
        whole, *by_size = scores
        sizes = list(AREA_RANGES)[1:]
        values = {"map": whole.map()}
        for threshold in (0.5, 0.75):
            is_there = threshold in self.iou_thresholds
            at = whole.map(self.iou_thresholds.index(threshold)) if is_there else NO_GROUND_TRUTH
            values[f"map_{100 * threshold:.0f}"] = at
        values |= {f"map_{size}": part.map() for size, part in zip(sizes, by_size, strict=True)}
        values |= {f"mar_{limit}": whole.mar(number) for number, limit in enumerate(self.max_detection_thresholds)}
        values |= {f"mar_{size}": part.mar(-1) for size, part in zip(sizes, by_size, strict=True)}
        return {name: torch.tensor([value], dtype=torch.float32) for name, value in values.items()}


def _sized(boxes: Tensor) -> Tensor:
    """Return boxes `(N, 4)` xyxy as x, y, width, height in one dimension."""
    corners = boxes.reshape(-1, 4)
    return torch.cat([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).reshape(-1)


def _check_finite(name: str, values: Any, least: float = -np.inf) -> None:
    """Raise a UserError for x, y, width, height and score or area of a box if they are not finite or too small."""
    wrong = ~np.isfinite(values).all(1) | (values[:, 2:] < least).any(1)
    if wrong.any():
        meaning = f"{name}: boxes must be x, y, x, y with finite values, in target the smaller ones first"
        raise UserError(f"{meaning}, got x, y, width, height and score or area {values[wrong][0].tolist()}")


def _check(frames: Sequence[Frame], name: str, columns: Sequence[str], optional: Sequence[str] = ()) -> None:
    for number, frame in enumerate(frames):
        for key in ("boxes", *columns):
            if not isinstance(frame.get(key), Tensor):
                got = type(frame[key]).__name__ if key in frame else f"the keys {', '.join(map(str, frame)) or 'none'}"
                raise UserError(f"{name}[{number}] must contain the tensor {key!r}, got {got}")
        boxes = frame["boxes"]
        if boxes.numel() and (boxes.dim() != 2 or boxes.size(1) != 4):
            raise UserError(f"{name}[{number}]['boxes'] must have shape (N, 4), got {tuple(boxes.shape)}")
        for key in (*columns, *(key for key in optional if key in frame)):
            if tuple(frame[key].shape) != (boxes.numel() // 4,):
                raise UserError(
                    f"{name}[{number}][{key!r}] must have shape ({boxes.numel() // 4},), one value per box, "
                    f"got {tuple(frame[key].shape)}"
                )
        if frame["labels"].numel() and frame["labels"].dtype not in INTEGERS:
            raise UserError(f"{name}[{number}]['labels'] must be integers, got {frame['labels'].dtype}")
