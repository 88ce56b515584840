"""ONNX files for any batch size, with or without non-maximum suppression, which is also available in PyTorch."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from yolo_lightning.commands.export.pt_and_torchscript import InferenceNetwork, largest_gaps, metadata, sample_images
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20  # First ONNX operator set with all operators of the network and of the suppression
INPUT, DECODED, DETECTIONS = "images", "output0", "detections"
CHECKED_BATCHES = (1, 2, 8)
BOX_TOLERANCE, SCORE_TOLERANCE = 0.05, 1e-3
"""Maximum differences in input pixels and in score, from float32 sums in different order."""
COLUMNS = 6  # x1, y1, x2, y2 in input pixels, score, class


def suppress(decoded: Tensor, settings: DetectionSettings) -> Tensor:
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


def suppression_model(classes: int, settings: DetectionSettings) -> Any:
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


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the file and PyTorch for one batch size."""

    batch: int
    boxes: float  # Maximum absolute difference of a box value in input pixels
    scores: float  # Maximum absolute difference of a class score
    detections: float | None = None  # Fraction of equal rows after suppression, 0 to 1; None without suppression


def require_packages() -> None:
    """Raise a `ValueError` if a package for ONNX export is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"format onnx requires {', '.join(missing)}: pip install 'yolo-lightning[export]'")


def write_onnx_file(network: InferenceNetwork, path: Path, settings: NetworkSettings, *, nms: bool) -> list[Difference]:
    """Write a network as ONNX if the outputs of onnxruntime and PyTorch agree; return the difference per batch size.

    The input `images` is `(B, channels, H, W)` float32 in [0, 1] for any B and any multiples H and W of the stride.
    The output is `output0`, as that of the network, or with `nms` `detections`, `(B, max_detections, 6)` as
    returned by `suppress`. The comparison uses the image size of the settings.
    """
    require_packages()
    import onnx

    assert settings.image_size is not None
    image_size = settings.image_size
    model = _decoding_model(network, image_size)
    if nms:
        tail = suppression_model(network.classes, settings.detections)
        tail.ir_version = model.ir_version
        model = onnx.compose.merge_models(model, tail, io_map=[(DECODED, "decoded")], outputs=[DETECTIONS, DECODED])
    about = metadata(settings, network, nms=nms)
    onnx.helper.set_model_props(model, {key: str(value) for key, value in about.items()})
    differences = compare(model, network, image_size, settings.detections if nms else None)
    if nms:  # the decoded output is needed for the comparison only
        model.graph.output.remove(*(one for one in model.graph.output if one.name == DECODED))
    onnx.checker.check_model(model, full_check=True)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
    return differences


def _decoding_model(network: InferenceNetwork, image_size: Sequence[int]) -> Any:
    example = sample_images(2, network.channels, image_size)  # torch.export would treat a batch of 1 as a constant
    height, width = (network.stride * torch.export.Dim(name, min=1) for name in ("rows", "columns"))
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    try:
        quiet.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Ultralytics' head, which assigns the anchors in forward
            program = torch.onnx.export(
                network,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[DECODED],
                dynamic_shapes={INPUT: {0: torch.export.Dim.DYNAMIC, 2: height, 3: width}},
                external_data=False,
                verbose=False,
            )
    finally:
        quiet.setLevel(level)
    assert program is not None
    return program.model_proto


def compare(
    model: Any, network: InferenceNetwork, image_size: int | Sequence[int], suppression: DetectionSettings | None
) -> list[Difference]:
    """Run the model in onnxruntime and the network in PyTorch; raise a `RuntimeError` if the outputs disagree."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    differences = []
    for batch in CHECKED_BATCHES:
        images = sample_images(batch, network.channels, image_size)
        with torch.no_grad():
            expected = network(images)
        outputs = dict(zip(names, map(torch.from_numpy, session.run(None, {INPUT: images.numpy()})), strict=True))
        boxes, scores = largest_gaps(network, outputs[DECODED], expected)
        same = None
        if suppression is not None:
            # Both suppressions receive the same decoded values: the last bit can decide which of two boxes is kept.
            rows = suppress(outputs[DECODED], suppression)
            same = float(torch.isclose(outputs[DETECTIONS], rows, rtol=1e-5, atol=1e-3).all(-1).float().mean())
        difference = Difference(batch, boxes, scores, same)
        is_close = difference.boxes <= BOX_TOLERANCE and difference.scores <= SCORE_TOLERANCE
        if not is_close or (same is not None and same < 1):
            raise RuntimeError(f"the ONNX file and PyTorch disagree: {difference}")
        differences.append(difference)
    return differences
