"""`python -m yolo_lightning recalibrate RUN`: statistics of batch normalization computed anew from training frames."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from yolo_lightning.checkpoints.averaging import OF_NETWORK
from yolo_lightning.checkpoints.checkpoint_file import RECALIBRATED, write_checkpoint
from yolo_lightning.checkpoints.resume import chosen_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.commands.console import check_writable, counter, writing
from yolo_lightning.commands.half_scores import Comparison, first_half
from yolo_lightning.data.batch import collate, targets
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset
from yolo_lightning.data.loader import EvaluationLoader, evaluation_settings, loader_arguments
from yolo_lightning.detector import arranged_network
from yolo_lightning.errors import UserError
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.model.convolution_settings import Convolution
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.layers import FoldedGraph, graph_stride
from yolo_lightning.model.network_settings import NetworkSettings, read_settings
from yolo_lightning.model.postprocess import predictions
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.training.device_transforms import as_one_class
from yolo_lightning.training.normalization_statistics import has_single_values, recompute_statistics
from yolo_lightning.utils.accelerator import chosen_device
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
    settings = read_settings(file)
    graph = arranged_network(file, device, conv_backend)
    stride = graph_stride(graph)
    names = list(graph.names.values())
    data.image_size.check("data.image_size", stride=stride)
    if not settings.single_class and names != list(data.class_names):
        classes = list(data.class_names)
        raise UserError(f"The classes of the data must be {names}, as in checkpoint {file}, got {classes}.")
    data.setup("validate")
    usual = FoldedGraph(graph, one_to_one=settings.detections.one_to_one, with_loss=False)
    inputs = _TrainingInputs(data, images, device, stride)
    if not recompute_statistics(graph, inputs):
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
    return content | {RECALIBRATED: {"from": file.name, "images": inputs.used}}, scores


@dataclass
class _TrainingInputs:
    """Yields inputs of the network from random training frames, in batches.

    Neighbouring frames are near duplicates, so that frames are drawn from the whole split, by `data.seed`. Frames that
    cannot be read, an incomplete last batch and batches without a variance in the deepest layers are left out.
    """

    data: DetectionDataModule
    images: int  # Number of frames to draw
    device: torch.device
    stride: int  # Largest stride of the network
    used: int = 0  # Number of frames in the inputs that were yielded

    def __iter__(self) -> Iterator[Tensor]:
        frames = self.data.open("train")
        chosen = np.random.default_rng(self.data.seed).permutation(len(frames))[: self.images].tolist()
        dataset = EvaluationDataset(frames, self.data.image_size)
        size = min(self.data.batch_size, len(chosen))
        settings = evaluation_settings(self.data.loader, frames.values() * len(chosen) // len(frames))
        arguments = loader_arguments(settings, on_gpu=self.device.type == "cuda", persistent=False)
        loader = EvaluationLoader(
            dataset, batch_size=size, sampler=chosen, drop_last=True, collate_fn=collate, **arguments
        )
        with counter("calibrated", len(chosen) // size * size) as advance:
            for batch in loader:
                batch = self.data.on_before_batch_transfer(batch, 0)
                heartbeat.enter(Phase.VALIDATE)
                advance(len(batch))
                readable = batch.readable_positions()
                if not readable:
                    continue
                inputs = network_input(batch.images[readable].to(self.device, non_blocking=True))
                if not has_single_values(inputs, self.stride):
                    self.used += len(inputs)
                    yield inputs


def judged(
    networks: Sequence[Any],
    data: DetectionDataModule,
    settings: NetworkSettings,
    classes: int,
    device: torch.device,
) -> Comparison:
    """Return the scores of two networks in the validation split, which is read once, as in `test`.

    Args:
        networks: Networks in evaluation mode on `device`, before and after a change.
        data: Data, set up for validation.
        settings: Settings in the checkpoint of the networks.
        classes: Number of classes of the networks.
        device: Device of the networks.
    """
    index = data.index("valid")
    matched: list[list[Matches]] = [[] for _ in networks]
    image_ids: list[str] = []
    with counter("processed", len(index)) as advance:
        for batch in data.val_dataloader():
            batch = data.on_before_batch_transfer(batch, 0)
            images = network_input(batch.images.to(device, non_blocking=True))
            expected = targets(as_one_class(batch) if settings.single_class else batch)
            for parts, network in zip(matched, networks, strict=True):
                output = network(images)[0].cpu()
                parts.append(match(predictions((output,), batch, settings.detections), expected, classes))
            image_ids += [target.image_id for target in expected]
            heartbeat.enter(Phase.VALIDATE)
            advance(len(batch))
    heartbeat.enter(Phase.METRICS)
    is_first = dict(zip(index.image_ids(), first_half(index).tolist(), strict=True))
    half = np.array([is_first[image_id] for image_id in image_ids], dtype=np.bool_)
    before, after = map(Matches.join, matched)
    return Comparison.of(before, after, half)
