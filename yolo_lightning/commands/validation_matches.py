"""Detections of a trained network in the validation split, matched with the annotated boxes; halves of the split."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from yolo_lightning.commands.console import counter
from yolo_lightning.data.array_types import BoolArray
from yolo_lightning.data.batch import targets
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.index.split_index import SplitIndex
from yolo_lightning.data.index.splits import choose_clips
from yolo_lightning.detector import arranged_network
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.model.convolution_settings import Convolution
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.layers import graph_stride
from yolo_lightning.model.network_settings import NetworkSettings, read_settings
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.training.device_transforms import as_one_class


def network_for(
    data: DetectionDataModule, file: Path, device: torch.device, conv_backend: Convolution
) -> tuple[Any, list[str], NetworkSettings]:
    """Return the graph of a checkpoint, its class names and its settings, and set up the data for a validation.

    Raises:
        UserError: If the network cannot be used with the data.
    """
    recorded = read_settings(file)
    graph = arranged_network(file, device, conv_backend)
    names = list(graph.names.values())
    data.image_size.check("data.image_size", stride=graph_stride(graph))
    if not recorded.single_class and names != list(data.class_names):
        classes = list(data.class_names)
        raise UserError(f"The classes of the data must be {names}, as in checkpoint {file}, got {classes}.")
    data.setup("validate")
    return graph, names, recorded


def match_validation(
    networks: Sequence[Callable[[Tensor], Any]],
    data: DetectionDataModule,
    device: torch.device,
    detections: DetectionSettings,
    *,
    classes: int,
    single_class: bool,
) -> tuple[list[Matches], BoolArray]:
    """Return the matches of the validation split for each network, as in `test`.

    Args:
        networks: Networks in evaluation mode on `device`; each processes each frame once.
        data: Data, set up for validation.
        device: Device of the networks.
        detections: Settings of the detections.
        classes: Number of classes of the networks.
        single_class: Whether all annotated boxes count as class 0.

    Returns:
        The matches of each network, and `(F,)` whether each of their F frames is in the first half.
    """
    index = data.index("valid")
    matched: list[list[Matches]] = [[] for _ in networks]
    image_ids: list[str] = []
    with counter("processed", len(index)) as advance:
        for batch in data.val_dataloader():
            batch = data.on_before_batch_transfer(batch, 0)
            images = network_input(batch.images.to(device, non_blocking=True))
            expected = targets(as_one_class(batch) if single_class else batch)
            for parts, network in zip(matched, networks, strict=True):
                output = network(images)[0].cpu()
                parts.append(match(predictions((output,), batch, detections), expected, classes))
            image_ids += [target.image_id for target in expected]
            heartbeat.enter(Phase.VALIDATE)
            advance(len(batch))
    is_first = dict(zip(index.image_ids(), first_half(index).tolist(), strict=True))
    half = np.array([is_first[image_id] for image_id in image_ids], dtype=np.bool_)
    return [Matches.join(parts) for parts in matched], half


def first_half(index: SplitIndex) -> BoolArray:
    """Return `(frames,)` whether a frame belongs to the first half: half of each month's clips, at least one.

    Halves share no clip, because neighbouring frames are near duplicates. Clips are chosen by a hash of their names,
    independent of run and machine. A month with a single clip is in the first half only.
    """
    return np.isin(index.clips(), choose_clips(index, 0.5))
