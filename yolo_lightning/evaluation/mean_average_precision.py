"""Mean average precision as a torchmetrics metric."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from yolo_lightning.data.array_types import AnyArray, Int64Array
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.average_precision import DETECTION_LIMITS, NO_GROUND_TRUTH, PartScores, RankedDetections
from yolo_lightning.evaluation.matching import ALL_AREAS, IOU_THRESHOLDS, MAX_THRESHOLDS, BoxTable, match_boxes
from yolo_lightning.utils.choices import LONGEST_VALUE, check_range, check_types, checked_arguments
from yolo_lightning.utils.plain_text import one_line

AREA_RANGES = {
    "all": ALL_AREAS,
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Smallest and largest area of an object in square pixels, both inclusive."""

RECALLS = torch.linspace(0, 1, 101).tolist()
"""The recall thresholds of torchmetrics' metric by default."""

TORCHMETRICS_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "box_format": (("xyxy",), "convert boxes with torchvision.ops.box_convert"),
    "iou_type": (("bbox", ("bbox",), ["bbox"]), "masks are scored by torchmetrics"),
    "rec_thresholds": ((None, RECALLS), "the recall thresholds are 0.00, 0.01, ..., 1.00 in float32"),
    "extended_summary": ((False,), "the precision at each recall is returned by torchmetrics"),
    "average": (("macro",), "to ignore the classes, set all labels to 0"),
    "backend": (("pycocotools", "faster_coco_eval"), "this metric needs neither of them and equals both"),
}
"""Further arguments of torchmetrics' metric: the values that this metric equals, and what to do for other values."""

LISTS = {"iou_thresholds": list[float] | None, "max_detection_thresholds": list[int] | None}
"""Types of the arguments that can also be arrays and tensors."""

Numbers = Sequence[float] | AnyArray | Tensor
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
    `update` does not wait for the device. A metric on the CPU waits for tensors of a GPU.

    Args:
        iou_thresholds: Minimum IoUs of a correct detection, 1 to 16 values of a list, an array or a tensor; None is
            0.50, 0.55, ..., 0.95.
        max_detection_thresholds: Three maximum numbers of detections per image and class; None is 1, 10, 100.
        class_metrics: Whether to return the scores per class.
        options: Arguments of `torchmetrics.Metric`. The further arguments of torchmetrics' `MeanAveragePrecision`
            are accepted with the values of which this metric gives the scores.

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

    @checked_arguments(unchecked=LISTS)
    def __init__(
        self,
        iou_thresholds: Numbers | None = None,
        max_detection_thresholds: Numbers | None = None,
        class_metrics: bool = False,
        **options: Any,
    ) -> None:
        for name, (values, remedy) in TORCHMETRICS_ARGUMENTS.items():
            value = _listed(options.pop(name, values[0]))
            if value not in values:
                got = one_line(repr(value), LONGEST_VALUE)
                raise UserError(f"MeanAveragePrecision.{name} must be {values[0]!r}, got {got}: {remedy}")
        lists = {"iou_thresholds": _listed(iou_thresholds)}
        lists["max_detection_thresholds"] = _listed(max_detection_thresholds)
        check_types("MeanAveragePrecision", LISTS, lists)
        super().__init__(**options)
        self.class_metrics = class_metrics
        self.iou_thresholds = list(IOU_THRESHOLDS if iou_thresholds is None else lists["iou_thresholds"])
        self.max_detection_thresholds = sorted(lists["max_detection_thresholds"] or DETECTION_LIMITS)
        if not 1 <= len(self.iou_thresholds) <= MAX_THRESHOLDS:
            raise UserError(f"iou_thresholds must contain 1 to {MAX_THRESHOLDS} values, got {iou_thresholds!r}")
        for threshold in self.iou_thresholds:
            check_range("iou_thresholds", threshold, ">= 0", "<= 1")
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
        for name, frames in (("detection", preds), ("object", target)):
            labels = [frame["labels"] for frame in frames]
            self._add(f"{name}_boxes", [_sized(frame["boxes"]) for frame in frames])
            self._add(f"{name}_labels", labels)
            self._add(f"{name}_counts", [torch.tensor([len(frame_labels) for frame_labels in labels])])
        self._add("detection_scores", [frame["scores"] for frame in preds])
        for name, key in (("object_areas", "area"), ("object_crowds", "iscrowd")):
            self._add(name, [frame.get(key, torch.zeros_like(frame["labels"])) for frame in target])

    def compute(self) -> dict[str, Tensor]:
        """Return the scores of all images, 0 to 1; -1 without annotated objects.

        The keys are `map`, `map_50`, `map_75`, `map_small`, `map_medium`, `map_large`, `mar_1`, `mar_10`, `mar_100`,
        `mar_small`, `mar_medium`, `mar_large`, `map_per_class` and `mar_100_per_class` (-1 without `class_metrics`),
        and `classes`, the labels to which these belong. The numbers in `mar_*` are the `max_detection_thresholds`.
        """
        detections = self._detections()
        objects = self._objects()
        classes, labels = np.unique(np.concatenate([detections.labels, objects.labels]), return_inverse=True)
        scores = self._scores(detections, objects, labels.reshape(-1))
        result = self._named(scores)
        result["map_per_class"] = torch.tensor([NO_GROUND_TRUTH])
        per_class = f"mar_{self.max_detection_thresholds[-1]}_per_class"
        result[per_class] = torch.tensor([NO_GROUND_TRUTH])
        if self.class_metrics:
            result["map_per_class"] = torch.from_numpy(scores[0].precision.mean(0)).float()
            result[per_class] = torch.from_numpy(scores[0].recall[-1].mean(0)).float()
        result["classes"] = torch.from_numpy(classes.astype(np.int32))
        return result

    def sync(self, *arguments: Any, **options: Any) -> None:
        """Gather the images of all ranks; a rank may have no images."""
        for name, dtype in STATES.items():
            # Otherwise torchmetrics would gather a float32 tensor from a rank without images.
            if not len(getattr(self, name)):
                setattr(self, name, [torch.zeros(0, dtype=dtype, device=self.device)])
        super().sync(*arguments, **options)

    def _add(self, state: str, parts: list[Tensor]) -> None:
        # `compute` on the CPU would read a copy from a GPU that does not block before the copy is complete.
        keeps_running = self.device.type != "cpu"
        getattr(self, state).append(torch.cat(parts).to(self.device, STATES[state], non_blocking=keeps_running))

    def _column(self, name: str) -> Any:
        """Return a state as an array; torchmetrics joins the parts of a state when ranks gather it."""
        state = getattr(self, name)
        if not isinstance(state, Tensor):
            state = torch.cat([torch.zeros(0, dtype=STATES[name], device=self.device), *state])
        return state.detach().cpu().numpy()

    def _detections(self) -> BoxTable:
        boxes = self._column("detection_boxes").reshape(-1, 4)
        scores = self._column("detection_scores")
        _check_finite("preds", np.column_stack([boxes, scores]))
        return BoxTable(self._column("detection_counts"), boxes, self._column("detection_labels"), scores=scores)

    def _objects(self) -> BoxTable:
        boxes = self._column("object_boxes").reshape(-1, 4)
        areas = self._column("object_areas").astype(np.float64)
        crowds = self._column("object_crowds").astype(np.bool_)
        _check_finite("target", np.column_stack([boxes, areas]), least=0)
        return BoxTable(self._column("object_counts"), boxes, self._column("object_labels"), areas=areas, crowds=crowds)

    def _scores(self, detections: BoxTable, objects: BoxTable, labels: Int64Array) -> list[PartScores]:
        """Return the scores per area range with the class indices of all detections, followed by those of objects."""
        limits = self.max_detection_thresholds
        thresholds = self.iou_thresholds
        detections = replace(detections, labels=labels[: len(detections.labels)])
        objects = replace(objects, labels=labels[len(detections.labels) :])
        classes = int(labels.max(initial=-1)) + 1
        matches = match_boxes(detections, objects, classes, thresholds, limits[-1], tuple(AREA_RANGES.values()))
        assert detections.scores is not None
        detected = matches.groups % max(classes, 1)
        annotated = matches.object_groups % max(classes, 1)
        order = np.lexsort((-detections.scores[matches.order], detected))
        ranked = RankedDetections(
            frames=1,
            annotated=np.zeros((1, classes), np.int64),
            labels=detected[order],
            owners=np.zeros(len(order), np.int64),
            ranks=matches.ranks[order],
            hits=matches.hits[0],
        )
        scores = []
        for hits, ignored, counted in zip(matches.hits, matches.ignored, matches.counted, strict=True):
            counts = np.bincount(annotated[counted], minlength=classes)[None]
            part = replace(ranked, annotated=counts, hits=hits[order], ignored=ignored[order])
            scores.append(part.scores(len(thresholds), limits))
        return scores

    def _named(self, scores: list[PartScores]) -> dict[str, Tensor]:
        """Return the scores of all classes under torchmetrics' names."""
        whole = scores[0]
        values = {"map": whole.map()}
        for threshold in (0.5, 0.75):
            name = f"map_{100 * threshold:.0f}"
            values[name] = NO_GROUND_TRUTH
            if threshold in self.iou_thresholds:
                values[name] = whole.map(self.iou_thresholds.index(threshold))
        by_size = dict(zip(AREA_RANGES, scores, strict=True))
        del by_size["all"]
        values |= {f"map_{size}": part.map() for size, part in by_size.items()}
        values |= {f"mar_{limit}": whole.mar(number) for number, limit in enumerate(self.max_detection_thresholds)}
        values |= {f"mar_{size}": part.mar(-1) for size, part in by_size.items()}
        return {name: torch.tensor([value], dtype=torch.float32) for name, value in values.items()}


def _listed(value: Any) -> Any:
    """Return the numbers of an array or a tensor as a list; another value is unchanged."""
    if isinstance(value, np.ndarray | Tensor):
        return value.reshape(-1).tolist()
    return value


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
                got = f"the keys {', '.join(map(str, frame)) or 'none'}"
                if key in frame:
                    got = type(frame[key]).__name__
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
