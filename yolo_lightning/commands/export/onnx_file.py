"""ONNX files for any batch size."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import OWN_SETTINGS
from yolo_lightning.model.layers import graph_stride, image_layers, keep_branch
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.model.postprocess import best_boxes
from yolo_lightning.utils.files import write_bytes

OPSET = 20  # First ONNX operator set with all operators of the network
INPUT = "images"
OUTPUT = "output0"
CHECKED_BATCHES = (1, 2, 8)
BOX_TOLERANCE = 0.05
SCORE_TOLERANCE = 1e-3
"""Maximum differences in input pixels and in score, from float32 sums in different order."""
OTHER_CLASS = 1e6  # pixels; larger than any distance of boxes


class InferenceNetwork(nn.Module):
    """Network from `(B, channels, H, W)` float32 images in [0, 1] to `(B, 4 + classes, anchors)` predictions.

    A prediction is xywh in input pixels and one score per class. Batch normalization is folded into the convolutions.
    H and W are multiples of `stride`. The graph, a result of `plain_network`, is modified in place. With one channel,
    gray images are treated as three equal channels; otherwise `channels` are the input channels of the graph.

    With the setting `one_to_one` the output is `(B, max_detections, 6)`, see `best_boxes`.
    """

    def __init__(self, graph: Any, channels: int = 3, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.detections = settings.detections if settings else DetectionSettings()
        self.stride = graph_stride(graph)
        keep_branch(graph, one_to_one=self.detections.one_to_one)
        graph.fuse(verbose=False)
        head = graph.model[-1]
        head.export = True
        head.dynamic = True
        head.format = "onnx"
        if channels == 1:
            for layer in image_layers(graph):
                # A convolution is linear: for equal channels, the weights can be summed over the input channels.
                layer.weight = nn.Parameter(layer.weight.detach().sum(1, keepdim=True))
                layer.in_channels = 1
        self.detector = graph.eval().requires_grad_(False)
        self.channels = channels
        self.classes = int(head.nc)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        decoded: Tensor = self.detector(images)
        if self.detections.one_to_one:
            return best_boxes(
                decoded, self.detections.max_detections, class_agnostic=self.detections.has_one_class_per_anchor
            )
        return decoded


def sample_images(batch: int, channels: int, image_size: int | Sequence[int]) -> Tensor:
    """Return deterministic `(batch, channels, height, width)` float32 images in [0, 1] for comparisons.

    The images are smooth because noise hardly activates the deeper layers.
    """
    size = ImageSize.of("image_size", image_size)
    generator = torch.Generator().manual_seed(batch)
    coarse = torch.rand(batch, channels, size.height // 16, size.width // 16, generator=generator)
    return nn.functional.interpolate(coarse, size=size, mode="bilinear").clamp_(0, 1)


def write_onnx_file(network: InferenceNetwork, path: Path, settings: NetworkSettings) -> dict[int, tuple[float, float]]:
    """Write a network as ONNX if the outputs of onnxruntime and PyTorch agree; return the result of `compare`.

    The input `images` is `(B, channels, H, W)` float32 in [0, 1] for any B and any multiples H and W of the stride.
    The output is `output0`, as that of the network. The comparison uses the image size of the settings.
    """
    import onnx

    assert settings.image_size is not None
    model = _model_of(network, settings.image_size)
    recorded = settings if settings.background else replace(settings, channels=network.channels)
    about = {  # with the keys that Ultralytics' readers expect
        "description": "YOLO detection network, trained with yolo_lightning",
        "author": "yolo_lightning",
        "version": version("ultralytics"),
        "license": "AGPL-3.0-or-later",
        "stride": network.stride,
        "task": "detect",
        "batch": 1,
        "imgsz": list(settings.image_size),
        "names": dict(enumerate(settings.class_names)),
        "channels": network.channels,
        "args": {"batch": 1, "dynamic": True, "nms": False},
        "end2end": settings.detections.one_to_one,
        OWN_SETTINGS: recorded.plain(),
    }
    onnx.helper.set_model_props(model, {key: str(value) for key, value in about.items()})
    differences = compare(model, network, settings.image_size)
    onnx.checker.check_model(model, full_check=True)
    write_bytes(path, model.SerializeToString())
    return differences


def _model_of(network: InferenceNetwork, image_size: Sequence[int]) -> Any:
    example = sample_images(2, network.channels, image_size)  # torch.export would treat a batch of 1 as a constant
    height, width = (network.stride * torch.export.Dim(name, min=1) for name in ("rows", "columns"))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ultralytics' head, which assigns the anchors in forward
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={INPUT: {0: torch.export.Dim.DYNAMIC, 2: height, 3: width}},
            external_data=False,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def compare(model: Any, network: InferenceNetwork, image_size: int | Sequence[int]) -> dict[int, tuple[float, float]]:
    """Run the model in onnxruntime and the network in PyTorch; return the result of `largest_gaps` by batch size.

    Raises:
        RuntimeError: If the outputs disagree.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    differences = {}
    for batch in CHECKED_BATCHES:
        images = sample_images(batch, network.channels, image_size)
        with torch.no_grad():
            expected = network(images)
        (output,) = session.run(None, {INPUT: images.numpy()})
        boxes, scores = largest_gaps(network, torch.from_numpy(output), expected)
        differences[batch] = (boxes, scores)
        if not (boxes <= BOX_TOLERANCE and scores <= SCORE_TOLERANCE):
            raise RuntimeError(f"the ONNX file and PyTorch disagree: {boxes} px, {scores} in score, batch {batch}")
    return differences


def largest_gaps(network: InferenceNetwork, output: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest differences of box values in pixels and of scores between two outputs of a network.

    Chosen boxes with nearly equal scores can be in another order, or the last of them can be missing: every other box
    in `expected` is compared with the most similar box in `output`.
    """
    if not network.detections.one_to_one:
        gaps = (output - expected).abs()
        return float(gaps[:, :4].max()), float(gaps[:, 4:].max())
    box_gap = 0.0
    score_gap = 0.0
    for boxes, expected_boxes in zip(output, expected, strict=True):
        lowest_score = expected_boxes[:, 4].min()
        certain = expected_boxes[expected_boxes[:, 4] > lowest_score + SCORE_TOLERANCE]
        if not len(certain):
            continue
        gaps = (certain[:, None] - boxes[None]).abs()  # (certain boxes, boxes of the output, 6)
        distances = gaps[..., :4].amax(-1) + gaps[..., 4] / SCORE_TOLERANCE + gaps[..., 5] * OTHER_CLASS
        nearest = gaps[torch.arange(len(gaps)), distances.argmin(1)]
        box_gap = max(box_gap, float(nearest[:, :4].max()))
        score_gap = max(score_gap, float(nearest[:, 4:].max()))
    return box_gap, score_gap
