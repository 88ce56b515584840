"""`python -m yolo_lightning recalibrate RUN`: statistics of batch normalization computed anew from training frames."""

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np
import torch
from jsonargparse import Namespace
from torch import Tensor
from torch.utils.data import DataLoader

from yolo_lightning.checkpoints.averaging import OF_NETWORK
from yolo_lightning.checkpoints.checkpoint_file import RECALIBRATED, remove_checkpoint, write_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.commands.console import counter, duration, finite, write_results, writing
from yolo_lightning.commands.halves import PARTS, Comparison
from yolo_lightning.commands.sweep.candidates import collect, in_first_half, suppressed
from yolo_lightning.commands.sweep.command import checkpoint_file, data_options_of
from yolo_lightning.commands.sweep.sweep_scores import Setting, SettingScores, score_setting
from yolo_lightning.data.batch import collate
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.detector import arranged_network, folded_network
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.score_table import score_text
from yolo_lightning.model.graph import network_input
from yolo_lightning.model.layers import Convolution, FoldedGraph
from yolo_lightning.model.network_settings import NetworkSettings, read_settings
from yolo_lightning.module import YOLOModule
from yolo_lightning.supervision import heartbeat
from yolo_lightning.supervision.heartbeat import Phase
from yolo_lightning.training.normalisation_statistics import recompute_statistics
from yolo_lightning.utils.choices import check_choices, check_range, chosen_device
from yolo_lightning.utils.paths import real_path, user_path
from yolo_lightning.utils.rank_zero import rank_zero_info
from yolo_lightning.utils.run_files import RECALIBRATED_CHECKPOINT

Inputs = Literal["evaluation", "training"]
InputsOrAuto = Literal["auto", Inputs]
PREFIX = "graph."  # of the network's tensors in a checkpoint
CANDIDATES = 1000  # boxes with the highest scores per frame before NMS
STATISTICS = ("running_mean", "running_var")


def recalibrate(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    images: int = 1024,
    inputs: InputsOrAuto = "auto",
    device: str = "auto",
    conv_backend: Convolution = "auto",
    output: str | None = None,
    json: str | None = None,
) -> None:
    """Compute the statistics of batch normalization anew with training frames, and compare the validation scores.

    The checkpoint is written in any case, and recommended only if its balanced score is higher on both halves of the
    validation clips. The weights are not changed.

    Args:
        data: Dataset.
        run: Run folder; the best checkpoint of its newest run is used.
        checkpoint: Path or address of a checkpoint, instead of the best one of `run`.
        images: Number of training frames, >= 2, drawn from all clips; whole batches of `data.batch_size` are used.
        inputs: `evaluation` letterboxes the frames as in validation; `training` augments them, without mosaic, as in
            the last epochs of a fit; `auto` uses `evaluation`, and `training` if that is not better on both halves.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.convolution.backend`.
        output: File to write, with the suffix .ckpt; null: `recalibrated.ckpt` beside the checkpoint.
        json: JSON file to write, with the scores.
    """
    check_options(images, inputs, output)
    file = checkpoint_file(run, checkpoint)
    target = user_path(output) if output else file.with_name(RECALIBRATED_CHECKPOINT)
    if real_path(target) == real_path(file):
        raise ValueError(f"--output must differ from the checkpoint, got {target}.")
    with writing(target):  # fails before the minutes of the scores, not after them
        target.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=target.parent).close()
    result, found = apply(file, data, images, inputs, chosen_device(device), conv_backend)
    with writing(target):
        write_checkpoint(result, target)
    content = result[RECALIBRATED]
    print(f"{target}: {content['images']:,} training frames, inputs as in {content['inputs']}")
    found.show("recalibrated")
    print(
        f"better on {found.where}: --ckpt_path {target}"
        if found.is_better
        else f"not better on {found.where}: keep {file}"
    )
    arms = {"before": found.before, "recalibrated": found.after}
    scores = {name: dict(zip(PARTS, map(entry, own), strict=False)) for name, own in arms.items()}
    record = {"weights": str(file), "output": str(target), **content}
    write_results(json, record | {"recommended": found.is_better, "scores": scores})


def apply(
    file: Path,
    data: DetectionDataModule,
    images: int,
    inputs: InputsOrAuto,
    device: torch.device,
    conv_backend: Convolution,
    batches: int | None = None,
) -> tuple[dict[str, Any], Comparison]:
    """Recalibrate a checkpoint, and score both on the validation frames, in `batches` batches (None: all).

    Returns:
        The recalibrated checkpoint, which is not written, so that no file exists before its scores; the scores.
    """
    known = read_settings(file)
    usual, names = folded_network(file, device, conv_backend, one_to_one=known.detections.one_to_one)
    data.image_size.check("data.image_size", stride=usual.stride)
    if not known.single_class and names != list(data.class_names):
        classes = list(data.class_names)
        raise ValueError(f"The classes of the data must be {names}, as in checkpoint {file}, got {classes}.")
    data.setup("validate")
    before: list[SettingScores] = []
    tried: tuple[Inputs, ...] = ("evaluation", "training") if inputs == "auto" else (inputs,)
    for kind in tried:
        content, graph = recalibrated(file, data, images, kind, device, conv_backend)
        before = before or judged(usual, data, known, len(names), device, batches)
        network = FoldedGraph(graph, one_to_one=known.detections.one_to_one, with_loss=False)
        found = Comparison(before, judged(network, data, known, len(names), device, batches))
        if found.is_better:
            break
    return content, found


def recalibrate_best(best: Path, data: DetectionDataModule, images: int, model: YOLOModule) -> str:
    """Recalibrate the best checkpoint of a finished fit; write the result if it is better, else delete an earlier one.

    The statistics of the checkpoint come from inputs of training already, so that inputs of evaluation are tried only.

    Args:
        best: Checkpoint.
        data: Data of the fit.
        images: See `recalibrate`.
        model: Module of the fit, whose device and convolutions are used.

    Returns:
        One line about the outcome.
    """
    target = best.with_name(RECALIBRATED_CHECKPOINT)
    trainer = model.trainer
    batches = int(sum(trainer.num_val_batches)) * trainer.world_size or None  # follows trainer.limit_val_batches
    frames = _validation_frames(data, batches)
    measured = [getattr(one, "validation_s", None) for one in trainer.callbacks]  # type: ignore[attr-defined]
    validation_s = next(filter(None, measured), None)
    images = min(images, len(data.index("train")))
    time = "" if validation_s is None else f", about {duration(validation_s * (2 + images / frames))}"
    rank_zero_info(f"recalibration: {images:,} training frames, then scores of {frames:,} validation frames{time}")
    device, backend = model.device, model.convolution.backend
    checkpoint, found = apply(best, data, images, "evaluation", device, backend, batches)
    content = checkpoint[RECALIBRATED]
    scores = f"balanced {score_text(found.before[0].balanced)} -> {score_text(found.after[0].balanced)}"
    line = f"recalibrated with {content['images']:,} frames, inputs as in {content['inputs']}: {scores}, "
    if found.is_better:
        write_checkpoint(checkpoint, target)
        return f"{line}better on {found.where}"
    remove_checkpoint(target)
    return f"{line}not better on {found.where}, not kept"


def check_options(images: int, inputs: InputsOrAuto, output: str | None) -> None:
    check_range("--images", images, ">= 2")
    check_choices("--inputs", [inputs], InputsOrAuto)
    if output is not None and Path(output).suffix != ".ckpt":
        raise ValueError(f"--output must end in .ckpt, got {output}.")


def bound_by_weights(options: Namespace) -> dict[str, Any]:
    """Return the data options that follow from the checkpoint of the given options."""
    check_options(options.images, options.inputs, options.output)
    return data_options_of(checkpoint_file(options.run, options.checkpoint), options)


def recalibrated(
    file: Path,
    data: DetectionDataModule,
    images: int,
    inputs: Inputs,
    device: torch.device,
    conv_backend: Convolution,
) -> tuple[dict[str, Any], Any]:
    """Return the checkpoint with new statistics, without the state of the training, which cannot be resumed.

    Returns:
        The checkpoint, and its network on `device`.
    """
    checkpoint = load_checkpoint(file)
    graph = arranged_network(file, device, conv_backend)
    used = [0]
    if not recompute_statistics(graph, _training_inputs(data, images, inputs, device, used)):
        raise ValueError(f"{file}: the network has no batch normalization with running statistics")
    new = {f"{PREFIX}{name}": one.cpu() for name, one in graph.state_dict().items() if name.endswith(STATISTICS)}
    state = checkpoint["state_dict"]
    assert new.keys() <= state.keys(), "the graph has the layers of the checkpoint"
    content = {name: checkpoint[name] for name in OF_NETWORK if name in checkpoint}
    content["state_dict"] = state | {name: one.to(state[name].dtype) for name, one in new.items()}
    return content | {RECALIBRATED: {"from": file.name, "images": used[0], "inputs": inputs}}, graph


def _training_inputs(
    data: DetectionDataModule, images: int, inputs: Inputs, device: torch.device, used: list[int]
) -> Iterator[Tensor]:
    """Yield inputs of the network from random training frames; add the number of frames to `used[0]`.

    Neighbouring frames are near duplicates, so that frames are drawn from the whole split, by `data.seed`. Frames that
    cannot be read and an incomplete last batch are left out.
    """
    frames = data.open("train")
    frames.quarantined = data.limits.quarantined(frames.index, "train")
    chosen = np.random.default_rng(data.seed).permutation(len(frames))[:images].tolist()
    dataset: Any = EvaluationDataset(frames, data.image_size)
    keys: list[Any] = chosen
    if inputs == "training":
        dataset = TrainingDataset(frames, data.image_size, data.augmentation, 0, data.seed)
        keys = [SampleKey(0, frame) for frame in chosen]
    size = min(data.batch_size, len(chosen))
    arguments = data.loader.arguments(on_gpu=device.type == "cuda", persistent=False)
    loader = DataLoader(dataset, batch_size=size, sampler=keys, drop_last=True, collate_fn=collate, **arguments)
    with counter("calibrated", len(chosen) // size * size) as advance:
        for batch in loader:
            batch = data.on_before_batch_transfer(batch, 0)
            beating(advance)(len(batch))
            readable = batch.readable_positions()
            if readable:
                used[0] += len(readable)
                yield network_input(batch.images[readable].to(device, non_blocking=True))


def judged(
    network: Any,
    data: DetectionDataModule,
    known: NetworkSettings,
    classes: int,
    device: torch.device,
    batches: int | None = None,
) -> list[SettingScores]:
    """Return the scores with the thresholds of the checkpoint: of all validation frames, then of both halves."""
    with counter("processed", _validation_frames(data, batches)) as advance:
        parts = collect(
            network,
            data,
            device,
            beating(advance),
            score_threshold=known.detections.score_threshold,
            limit=CANDIDATES,
            single_class=known.single_class,
            batches=batches,
        )
    heartbeat.enter(Phase.METRICS)
    matched = [match(suppressed(part, classes, known.detections), part.targets, classes) for part in parts]
    half = in_first_half(parts, data.index("valid"))
    halves = [half, ~half] if half.any() and not half.all() else []
    setting = Setting(known.detections.score_threshold, known.detections.iou_threshold)
    return [score_setting(Matches.join(matched), setting, part) for part in (np.ones_like(half), *halves)]


def _validation_frames(data: DetectionDataModule, batches: int | None) -> int:
    frames = len(data.index("valid"))
    return frames if batches is None else min(frames, batches * data.batch_size)


def beating(advance: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that also reports a batch to the supervisor of a fit."""

    def advanced(count: int) -> None:
        heartbeat.enter(Phase.VALIDATE)
        advance(count)

    return advanced


def entry(one: SettingScores) -> dict[str, float | None]:
    return {name: finite(value) for name, value in one.named().items()}
