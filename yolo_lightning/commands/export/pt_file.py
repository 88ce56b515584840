"""Ultralytics' `.pt` file of a trained network, with averaged weights and PyTorch's own layers."""

from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from yolo_lightning.model.graph import OWN_SETTINGS, read_checkpoint
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.utils.files import replacing


def plain_network(checkpoint: Path) -> Any:
    """Return the network of a checkpoint with its averaged weights and PyTorch's own layers, as Ultralytics builds it.

    It is an Ultralytics `DetectionModel` in evaluation mode, float32, contiguous, on the CPU.
    """
    return read_checkpoint(checkpoint).eval()


def write_ultralytics_file(graph: Any, path: Path, settings: NetworkSettings) -> None:
    """Write the result of `plain_network`, modified in place, in Ultralytics' checkpoint layout in half precision.

    A network with values beyond the range of half precision is written in float32, which Ultralytics reads as well. The
    file is a pickle of the whole network; open such files only from trusted senders. The image size of the settings
    is the default of `predict` and `val`.
    """
    recorded = settings.plain()
    options = {"task": "detect", "imgsz": recorded["image_size"], "single_cls": False, "data": None}
    graph.args = options
    graph.task = "detect"
    graph.criterion = None
    if _fits_in_half_precision(graph):
        graph = graph.half()
    content = {
        "epoch": -1,
        "best_fitness": None,
        "model": graph,
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


def _fits_in_half_precision(graph: Any) -> bool:
    """Return whether half precision represents all weights and statistics of a network as finite numbers."""
    largest = torch.finfo(torch.float16).max
    tensors = [tensor for tensor in graph.state_dict().values() if tensor.is_floating_point()]
    return all(bool((tensor.abs() <= largest).all()) for tensor in tensors)
