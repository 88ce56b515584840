"""Non-maximum suppression as an ONNX model and in PyTorch, with equal results."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from yolo_lightning.model.network_settings import NetworkSettings

COLUMNS = 6
"""x1, y1, x2, y2 in input pixels, score, class."""


@dataclass(frozen=True, slots=True)
class Suppression:
    """Settings of non-maximum suppression."""

    score_threshold: float = 0.25  # Minimum score of a detection, exclusive, 0 to 1
    iou_threshold: float = 0.7  # IoU above which the lower-scoring box of a class is removed, 0 to 1
    max_detections: int = 300  # Maximum detections per image, >= 1

    @classmethod
    def of(cls, settings: NetworkSettings) -> Self:
        """Return the suppression of a network's settings; raise a `ValueError` if a value is out of range."""
        return cls(settings.score_threshold, settings.iou_threshold, settings.max_detections)

    def __post_init__(self) -> None:
        for name in ("score_threshold", "iou_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}.")
        if self.max_detections < 1:
            raise ValueError(f"max_detections must be >= 1, got {self.max_detections}.")


def suppress(decoded: Tensor, settings: Suppression) -> Tensor:
    """Return the detections of a batch; as in evaluation, an anchor can be detected as several classes.

    `decoded` is `(B, 4 + classes, anchors)`, xywh in input pixels and class scores. The result is `(B, max_detections,
    6)` float32 sorted by descending score: x1, y1, x2, y2, score, class; padded with zeros.
    """
    rows = decoded.new_zeros(len(decoded), settings.max_detections, COLUMNS)
    for image, (boxes, scores) in enumerate(zip(decoded[:, :4], decoded[:, 4:], strict=True)):
        labels, anchors = (scores > settings.score_threshold).nonzero(as_tuple=True)
        centre, half = boxes[:2, anchors].T, boxes[2:, anchors].T / 2
        corners = torch.cat((centre - half, centre + half), 1)
        found = scores[labels, anchors]
        kept = batched_nms(corners, found, labels, settings.iou_threshold)[: settings.max_detections]
        columns = (corners[kept], found[kept, None], labels[kept, None].to(corners))
        rows[image, : len(kept)] = torch.cat(columns, 1)
    return rows


def suppression_model(classes: int, settings: Suppression) -> Any:
    """Return `suppress` as an ONNX model with the input `decoded` and the output `detections`."""
    from onnxscript import FLOAT, script
    from onnxscript import opset20 as op

    kept = settings.max_detections

    @script(default_opset=op)
    def graph(decoded):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - onnxscript compiles the source
        boxes, scores = op.Split(decoded, op.Constant(value_ints=[4, classes]), axis=1)
        boxes = op.Transpose(boxes, perm=[0, 2, 1])
        # Rows of image, class, anchor; at most max_detections per class.
        chosen = op.NonMaxSuppression(
            boxes,
            scores,
            op.Constant(value_ints=[kept]),
            op.Constant(value_floats=[settings.iou_threshold]),
            op.Constant(value_floats=[settings.score_threshold]),
            center_point_box=1,
        )
        found = op.GatherND(scores, chosen)
        best, order = op.TopK(found, op.Shape(found))
        image, label, anchor = op.Split(op.Gather(chosen, order), axis=1, num_outputs=3)
        centre, size = op.Split(op.GatherND(boxes, op.Concat(image, anchor, axis=1)), axis=1, num_outputs=2)
        half = op.Div(size, op.Constant(value_float=2.0))
        column = op.Constant(value_ints=[1])
        corners = op.Concat(op.Sub(centre, half), op.Add(centre, half), axis=1)
        rows = op.Concat(corners, op.Unsqueeze(best, column), op.Cast(label, to=1), axis=1)
        # Rows are sorted by score: the number of earlier rows of the same image is the rank within the image.
        batch = op.Shape(decoded, start=0, end=1)
        member = op.OneHot(op.Squeeze(image, column), batch, op.Constant(value_ints=[0, 1]), axis=1)
        so_far = op.Mul(op.CumSum(member, op.Constant(value_int=0)), member)
        place = op.Sub(op.ReduceSum(so_far, column), op.Constant(value_int=1))
        fits = op.Squeeze(op.Less(place, op.Constant(value_ints=[kept])), column)
        target = op.Compress(op.Concat(image, place, axis=1), fits, axis=0)
        shape = op.Concat(batch, op.Constant(value_ints=[kept, COLUMNS]), axis=0)
        empty = op.Expand(op.Constant(value_float=0.0), shape)
        detections = op.ScatterND(empty, target, op.Compress(rows, fits, axis=0))
        return detections  # noqa: RET504 - the variable name becomes the output name

    return graph.to_model_proto(
        input_types=[FLOAT["batch", 4 + classes, "anchors"]], output_types=[FLOAT["batch", kept, COLUMNS]]
    )
