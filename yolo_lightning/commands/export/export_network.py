"""The network to export, with averaged weights and PyTorch's own layers; Ultralytics `.pt` and TorchScript files."""

import json
import warnings
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.data.boxes import STRIDE
from yolo_lightning.model.graph import OWN_SETTINGS, read_checkpoint
from yolo_lightning.model.layers import restore
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing

METADATA = "config.txt"  # Name of the metadata in a TorchScript archive, as Ultralytics expects
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
    H and W are multiples of 32. The graph, a result of `plain_network`, is modified in place. With one channel, gray
    images are treated as three equal channels.
    """

    def __init__(self, graph: Any, channels: int = 3) -> None:
        super().__init__()
        assert channels in (1, 3)
        graph.fuse(verbose=False)
        head = graph.model[-1]
        head.export, head.dynamic, head.format = True, True, "onnx"
        if channels == 1:
            stem = graph.model[0].conv
            # A convolution is linear: for equal channels, the weights can be summed over the input channels.
            stem.weight = nn.Parameter(stem.weight.detach().sum(1, keepdim=True))
            stem.in_channels = 1
        self.detector = graph.eval().requires_grad_(False)
        self.channels = channels
        self.classes = int(head.nc)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        decoded: Tensor = self.detector(images)
        return decoded


def sample_images(batch: int, channels: int, image_size: int) -> Tensor:
    """Return deterministic `(batch, channels, image_size, image_size)` float32 images in [0, 1] for comparisons.

    The images are smooth because noise hardly activates the deeper layers.
    """
    generator = torch.Generator().manual_seed(batch)
    coarse = torch.rand(batch, channels, image_size // 16, image_size // 16, generator=generator)
    return nn.functional.interpolate(coarse, size=image_size, mode="bilinear").clamp_(0, 1)


def metadata(settings: NetworkSettings, *, nms: bool) -> dict[str, Any]:
    """Return the metadata of an exported file with the keys that Ultralytics' readers expect."""
    return {
        "description": "YOLOv8 detection network, trained with yolo_lightning",
        "author": "yolo_lightning",
        "version": version("ultralytics"),
        "license": "AGPL-3.0-or-later",
        "stride": STRIDE,
        "task": "detect",
        "batch": 1,
        "imgsz": [settings.image_size, settings.image_size],
        "names": dict(enumerate(settings.class_names)),
        "channels": settings.channels,
        "args": {"batch": 1, "dynamic": True, "nms": nms},
        "end2end": False,
        OWN_SETTINGS: settings.plain(),
    }


def write_torchscript_file(network: InferenceNetwork, path: Path, settings: NetworkSettings) -> float:
    """Write a traced network if the loaded file agrees; return the largest difference for batches of 1, 2 and 8.

    The file accepts image sizes of other multiples of 32.
    """
    assert settings.image_size is not None
    image_size = settings.image_size
    about = metadata(replace(settings, channels=network.channels), nms=False)
    with warnings.catch_warnings(), torch.no_grad(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # torch.jit's deprecation, and tracing of Ultralytics' head
        example = sample_images(2, network.channels, image_size)
        traced = torch.jit.trace(network, example, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(temporary), _extra_files={METADATA: json.dumps(about)})
        again = torch.jit.load(str(temporary))  # type: ignore[no-untyped-call]
        gaps = []
        for batch in (1, 2, 8):
            images = sample_images(batch, network.channels, image_size)
            gaps.append(float((again(images) - network(images)).abs().max()))
        if max(gaps) > 1e-3:
            raise RuntimeError(f"the TorchScript file and PyTorch disagree: maximum difference {max(gaps)}")
    return max(gaps)


def write_ultralytics_file(graph: Any, path: Path, settings: NetworkSettings) -> None:
    """Write the result of `plain_network`, modified in place, in Ultralytics' checkpoint layout in half precision.

    The file is a pickle of the whole network; open such files only from trusted senders. The image size of the settings
    is the default of `predict` and `val`.
    """
    options = {"task": "detect", "imgsz": settings.image_size, "single_cls": False, "data": None}
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
        OWN_SETTINGS: settings.plain(),
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)
        imported = torch.serialization.get_unsafe_globals_in_checkpoint(temporary)
        foreign = [name for name in imported if name.split(".")[0] in OWN_PACKAGES]
        assert not foreign, f"the file would import {foreign}"
