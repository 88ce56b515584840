"""The network to export, with averaged weights and PyTorch's own layers; Ultralytics `.pt` and TorchScript files."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.data.image_size import ImageSize
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import OWN_SETTINGS, read_checkpoint
from yolo_lightning.model.layers import graph_stride, image_layers, keep_branch, restore
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.model.postprocess import best_boxes
from yolo_lightning.utils.files import replacing

METADATA = "config.txt"  # Name of the metadata in a TorchScript archive, as Ultralytics expects
SCORE_ROUNDING = 1e-3  # difference of scores that float32 sums in different order can cause
OTHER_CLASS = 1e6  # pixels; larger than any distance of boxes
OWN_PACKAGES = ("yolo_lightning", "callbacks")


def plain_network(checkpoint: Path) -> Any:
    """Return the network of a checkpoint with its averaged weights and PyTorch's own layers, as Ultralytics builds it.

    It is an Ultralytics `DetectionModel` in evaluation mode, float32, contiguous, on the CPU.
    """
    graph = read_checkpoint(checkpoint)
    restore(graph)
    graph.to(memory_format=torch.contiguous_format)
    return graph.eval()


class InferenceNetwork(nn.Module):
    """Network from `(B, channels, H, W)` float32 images in [0, 1] to `(B, 4 + classes, anchors)` predictions.

    A prediction is xywh in input pixels and one score per class. Batch normalization is folded into the convolutions.
    H and W are multiples of `stride`. The graph, a result of `plain_network`, is modified in place. With one channel,
    gray images are treated as three equal channels; otherwise `channels` are the input channels of the graph.

    With the setting `one_to_one` the output is `(B, max_detections, 6)`, see `best_boxes`.
    """

    def __init__(self, graph: Any, channels: int = 3, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.detections = DetectionSettings() if settings is None else settings.detections
        self.stride = graph_stride(graph)
        keep_branch(graph, one_to_one=self.detections.one_to_one)
        graph.fuse(verbose=False)
        head = graph.model[-1]
        head.export, head.dynamic, head.format = True, True, "onnx"
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
            return best_boxes(decoded, self.detections.max_detections, class_agnostic=self.detections.class_agnostic)
        return decoded


def sample_images(batch: int, channels: int, image_size: int | Sequence[int]) -> Tensor:
    """Return deterministic `(batch, channels, height, width)` float32 images in [0, 1] for comparisons.

    The images are smooth because noise hardly activates the deeper layers.
    """
    size = ImageSize.of("image_size", image_size)
    generator = torch.Generator().manual_seed(batch)
    coarse = torch.rand(batch, channels, size.height // 16, size.width // 16, generator=generator)
    return nn.functional.interpolate(coarse, size=size, mode="bilinear").clamp_(0, 1)


def metadata(settings: NetworkSettings, network: InferenceNetwork, *, nms: bool) -> dict[str, Any]:
    """Return the metadata of an exported file with the keys that Ultralytics' readers expect."""
    if not settings.neighbours:
        settings = replace(settings, channels=network.channels)
    assert settings.image_size is not None
    return {
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
        "args": {"batch": 1, "dynamic": True, "nms": nms},
        "end2end": settings.detections.one_to_one,
        OWN_SETTINGS: settings.plain(),
    }


def largest_gaps(network: InferenceNetwork, found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest differences of box values in pixels and of scores between two outputs of a network.

    Chosen boxes with nearly equal scores can be in another order, or the last of them can be missing: every other box
    in `expected` is compared with the most similar box in `found`.
    """
    if not network.detections.one_to_one:
        gap = (found - expected).abs()
        return float(gap[:, :4].max()), float(gap[:, 4:].max())
    boxes = scores = 0.0
    for own, other in zip(found, expected, strict=True):
        certain = other[other[:, 4] > other[:, 4].min() + SCORE_ROUNDING]
        if not len(certain):
            continue
        gap = (certain[:, None] - own[None]).abs()  # (expected, found, 6)
        distance = gap[..., :4].amax(-1) + gap[..., 4] / SCORE_ROUNDING + gap[..., 5] * OTHER_CLASS
        nearest = gap[torch.arange(len(gap)), distance.argmin(1)]
        boxes, scores = max(boxes, float(nearest[:, :4].max())), max(scores, float(nearest[:, 4:].max()))
    return boxes, scores


def write_torchscript_file(network: InferenceNetwork, path: Path, settings: NetworkSettings) -> float:
    """Write a traced network if the loaded file agrees; return the largest difference for batches of 1, 2 and 8.

    The file accepts image sizes of other multiples of the stride.
    """
    assert settings.image_size is not None
    image_size = settings.image_size
    about = metadata(settings, network, nms=False)
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # torch.jit's deprecation, and tracing of Ultralytics' head
        example = sample_images(2, network.channels, image_size)
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(temporary), _extra_files={METADATA: json.dumps(about)})
        again = torch.jit.load(str(temporary))  # type: ignore[no-untyped-call]
        gaps = []
        for batch in (1, 2, 8):
            images = sample_images(batch, network.channels, image_size)
            gaps.append(max(largest_gaps(network, again(images), network(images))))
        if max(gaps) > 1e-3:
            raise RuntimeError(f"the TorchScript file and PyTorch disagree: maximum difference {max(gaps)}")
    return max(gaps)


def write_ultralytics_file(graph: Any, path: Path, settings: NetworkSettings) -> None:
    """Write the result of `plain_network`, modified in place, in Ultralytics' checkpoint layout in half precision.

    The file is a pickle of the whole network; open such files only from trusted senders. The image size of the settings
    is the default of `predict` and `val`.
    """
    recorded = settings.plain()
    options = {"task": "detect", "imgsz": recorded["image_size"], "single_cls": False, "data": None}
    graph.args = options
    graph.task = "detect"
    graph.criterion = None
    content = {
        "epoch": -1,
        "best_fitness": None,
        "model": graph.half(),
        "ema": None,
        "updates": None,
        "optimizer": None,
        "train_args": options,
        "train_metrics": None,
        "train_results": None,
        "date": datetime.now().isoformat(),
        "version": version("ultralytics"),
        "license": "AGPL-3.0-or-later",
        OWN_SETTINGS: recorded,
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)
        imported = torch.serialization.get_unsafe_globals_in_checkpoint(temporary)
        foreign = [name for name in imported if name.split(".")[0] in OWN_PACKAGES]
        assert not foreign, f"the file would import {foreign}"
