"""Shows a split to a network, frame by frame, once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from yolo_lightning.commands.sweep.candidates import Candidates, keep_candidates
from yolo_lightning.data.batch import collate
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.formats.quarantine import places
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.tta import tta_candidates
from yolo_lightning.training.device_transforms import as_one_class

Network = Callable[[Tensor], Any]


def collect(
    network: Network,
    data: DetectionDataModule,
    device: torch.device,
    advance: Callable[[int], None],
    *,
    floor: float,
    limit: int,
    single_class: bool = False,
    tta: bool = False,
) -> list[Candidates]:
    """The candidates of the validation split, batch by batch, in file order.

    Args:
        network: On `device`, in evaluation mode.
        data: Set up for validation.
        device: Where to compute.
        advance: Told how many more frames are done.
        floor: Candidates must score more than this, 0 to 1.
        limit: Candidates kept per frame.
        single_class: Whether all annotated boxes count as class 0.
        tta: Whether each frame is shown mirrored and scaled, too.

    Raises:
        ValueError: If more frames cannot be read than the data module allows.
    """
    frames = data.open("valid")
    frames.quarantined = places(data.quarantine, frames.index, "valid")
    arguments = data.loader.arguments(on_gpu=device.type == "cuda", persistent=False)
    dataset = EvaluationDataset(frames, data.image_size)
    loader = DataLoader(dataset, batch_size=data.batch_size, collate_fn=collate, **arguments)
    parts = []
    for batch in loader:
        batch = data.on_before_batch_transfer(batch, 0)
        images = network_input(batch.images.to(device, non_blocking=True))
        decoded = network(images)[0]
        if tta:
            decoded = tta_candidates(network, images, decoded)
        shown = as_one_class(batch) if single_class else batch
        parts.append(keep_candidates(decoded, shown, floor=floor, limit=limit))
        advance(len(batch))
    return parts
