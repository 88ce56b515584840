"""`python -m yolo_lightning recalibrate RUN`: statistics of batch normalization computed anew from training frames."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from yolo_lightning.checkpoints.averaging import OF_NETWORK
from yolo_lightning.checkpoints.checkpoint_file import RECALIBRATED, write_checkpoint
from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.commands.console import check_writable, counter, writing
from yolo_lightning.commands.half_scores import Comparison, score_frames
from yolo_lightning.commands.option_limits import RECALIBRATION_IMAGES
from yolo_lightning.commands.validation_matches import match_validation, network_for
from yolo_lightning.data.batch import collate
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.loader import evaluation_settings, loader_arguments
from yolo_lightning.errors import UserError
from yolo_lightning.model.convolution_settings import Convolution
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.layers import FoldedGraph, graph_stride
from yolo_lightning.model.network_settings import NetworkSettings
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.training.normalization_statistics import has_single_values, recompute_statistics
from yolo_lightning.utils.accelerator import chosen_device
from yolo_lightning.utils.choices import check_range
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.run_files import RECALIBRATED_CHECKPOINT

PREFIX = "graph."  # of the network's tensors in a checkpoint
STATISTICS = ("running_mean", "running_var")


def recalibrate(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    images: int = 1024,
    device: str = "auto",
    conv_backend: Convolution = "auto",
    output: str | None = None,
) -> None:
    """Compute the statistics of batch normalization anew with training frames, and compare the validation scores.

    The frames are letterboxed as in validation. The checkpoint is written in any case, and recommended only if its
    balanced score (mAP50 for data without months) is higher on all validation frames and both halves of the clips. The
    weights are not changed.

    Args:
        data: Dataset.
        run: Run folder; the best checkpoint of its newest run is used.
        checkpoint: Path or address of a checkpoint, instead of the best one of `run`.
        images: Number of training frames, >= 2, drawn from all clips; whole batches of `data.batch_size` are used.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.convolution.backend`.
        output: File to write, with the suffix .ckpt; null: `recalibrated.ckpt` beside the checkpoint.
    """
    check_range("images", images, RECALIBRATION_IMAGES)
    file = chosen_checkpoint(run, checkpoint)
    target = user_path(output) if output is not None else file.with_name(RECALIBRATED_CHECKPOINT)
    if real_path(target) == real_path(file):
        raise UserError(f"--output must differ from the checkpoint, got {target}.")
    check_writable(target, ".ckpt")
    result, scores = apply(file, data, images, chosen_device(device), conv_backend)
    with writing(target):
        write_checkpoint(result, target)
    print(f"{target}: {result[RECALIBRATED]['images']:,} training frames")
    scores.show("recalibrated")
    if scores.is_better:
        print(f"better on {scores.where}: --ckpt_path {target}")
    else:
        print(f"not better on {scores.where}: keep {file}")


def apply(
    file: Path,
    data: DetectionDataModule,
    images: int,
    device: torch.device,
    conv_backend: Convolution,
) -> tuple[dict[str, Any], Comparison]:
    """Recalibrate a checkpoint, and score both on the validation frames.

    Returns:
        The recalibrated checkpoint, without the state of the training, which cannot be resumed; the scores. The
        checkpoint is not written, so that no file exists before its scores.
    """
    graph, names, settings = network_for(data, file, device, conv_backend)
    usual = FoldedGraph(graph, one_to_one=settings.detections.one_to_one, with_loss=False)
    used = [0]
    inputs = _training_inputs(data, images, device, used)
    stride = graph_stride(graph)
    if not recompute_statistics(graph, (batch for batch in inputs if not has_single_values(batch, stride))):
        raise UserError(f"{file}: the network has no batch normalization with running statistics")
    tensors = graph.state_dict()
    statistics = {f"{PREFIX}{name}": tensors[name].cpu() for name in tensors if name.endswith(STATISTICS)}
    checkpoint = load_checkpoint(file)
    state = checkpoint["state_dict"]
    assert statistics.keys() <= state.keys(), "the graph has the layers of the checkpoint"
    content = {name: checkpoint[name] for name in OF_NETWORK if name in checkpoint}
    content["state_dict"] = state | {name: value.to(state[name].dtype) for name, value in statistics.items()}
    network = FoldedGraph(graph, one_to_one=settings.detections.one_to_one, with_loss=False)
    scores = judged([usual, network], data, settings, len(names), device)
    return content | {RECALIBRATED: {"from": file.name, "images": used[0]}}, scores


def _training_inputs(data: DetectionDataModule, images: int, device: torch.device, used: list[int]) -> Iterator[Tensor]:
    """Yield inputs of the network from random training frames; add the number of frames to `used[0]`.

    Neighbouring frames are near duplicates, so that frames are drawn from the whole split, by `data.seed`. Frames that
    cannot be read and an incomplete last batch are left out.
    """
    frames = data.open("train")
    chosen = np.random.default_rng(data.seed).permutation(len(frames))[:images].tolist()
    dataset = EvaluationDataset(frames, data.image_size)
    size = min(data.batch_size, len(chosen))
    settings = evaluation_settings(data.loader, frames.values() * len(chosen) // len(frames))
    arguments = loader_arguments(settings, on_gpu=device.type == "cuda", persistent=False)
    loader = DataLoader(dataset, batch_size=size, sampler=chosen, drop_last=True, collate_fn=collate, **arguments)
    with counter("calibrated", len(chosen) // size * size) as advance:
        for batch in loader:
            batch = data.on_before_batch_transfer(batch, 0)
            heartbeat.enter(Phase.VALIDATE)
            advance(len(batch))
            readable = batch.readable_positions()
            if readable:
                used[0] += len(readable)
                yield network_input(batch.images[readable].to(device, non_blocking=True))


def judged(
    networks: Sequence[Any],
    data: DetectionDataModule,
    known: NetworkSettings,
    classes: int,
    device: torch.device,
) -> Comparison:
    """Return the scores of two networks with the thresholds of the checkpoint, which reads each frame once."""
    matched, half = match_validation(
        networks, data, device, known.detections, classes=classes, single_class=known.single_class
    )
    heartbeat.enter(Phase.METRICS)
    halves = [half, ~half] if half.any() and not half.all() else []
    parts = [np.ones_like(half), *halves]
    before, after = ([score_frames(matches, part) for part in parts] for matches in matched)
    return Comparison(before, after)
