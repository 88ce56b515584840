"""`python -m yolo_lightning recalibrate RUN`: statistics of batch normalisation computed anew from training frames."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jsonargparse import Namespace
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader

from yolo_lightning.checkpoints.averaging import OF_NETWORK
from yolo_lightning.checkpoints.checkpoint_file import RECALIBRATED, write_checkpoint
from yolo_lightning.checkpoints.run_folder import DEFAULT_RUN
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.commands.console import counter
from yolo_lightning.commands.sweep.candidates import collect, first_half, suppressed
from yolo_lightning.commands.sweep.command import PIPE_WIDTH, checkpoint_file
from yolo_lightning.commands.sweep.sweep_scores import Setting, SettingScores, score_setting
from yolo_lightning.data.batch import collate
from yolo_lightning.data.boxes import check_image_size
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.dataset import EvaluationDataset, TrainingDataset
from yolo_lightning.data.formats.dataset_format import LTDV2
from yolo_lightning.data.formats.frame_checks import quarantined_positions
from yolo_lightning.data.sampling.resumable_loader import SampleKey
from yolo_lightning.detector import PROBE_TIMEOUT_S, folded_network
from yolo_lightning.evaluation.matching import Matches, match
from yolo_lightning.evaluation.score_table import number_table, score_text
from yolo_lightning.model.graph import network_input, read_network
from yolo_lightning.model.layers import Convolution, arrange, choose_convolution
from yolo_lightning.model.network_settings import NetworkSettings, bound_options, read_record, read_settings
from yolo_lightning.training.normalisation_statistics import recompute_statistics
from yolo_lightning.utils.choices import check_choices, check_range, chosen_device
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import RECALIBRATED_CHECKPOINT

Inputs = Literal["evaluation", "training"]
PREFIX = "graph."  # of the network's tensors in a checkpoint
CANDIDATES = 1000  # boxes with the highest scores per frame before NMS
STATISTICS = ("running_mean", "running_var")
COLUMNS = ("map_50", "cov", "balanced")
HALVES = ("half 1", "half 2")


def recalibrate(
    *,
    data: DetectionDataModule,
    run: str = DEFAULT_RUN,
    checkpoint: str | None = None,
    images: int = 1024,
    inputs: Inputs = "evaluation",
    device: str = "auto",
    conv_backend: Convolution = "auto",
    output: str | None = None,
    json: str | None = None,
) -> None:
    """Compute the statistics of batch normalisation anew with training frames, and compare the validation scores.

    The checkpoint is written in any case, and recommended only if its balanced score is higher on both halves of the
    validation clips. The weights are not changed.

    Args:
        data: Dataset.
        run: Run folder; the best checkpoint of its newest run is used.
        checkpoint: Path or address of a checkpoint, instead of the best one of `run`.
        images: Number of training frames, >= 2, drawn from all clips; whole batches of `data.batch_size` are used.
        inputs: `evaluation` letterboxes the frames as in validation; `training` augments them, without mosaic, as in
            the last epochs of a fit.
        device: `cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one.
        conv_backend: As `model.conv_backend`.
        output: File to write, with the suffix .ckpt; null: `recalibrated.ckpt` beside the checkpoint.
        json: JSON file to write, with the scores.
    """
    check_options(images, inputs, output)
    file = checkpoint_file(run, checkpoint)
    target = Path(output).expanduser() if output else file.with_name(RECALIBRATED_CHECKPOINT)
    if target.resolve() == file.resolve():
        raise ValueError(f"--output must differ from the checkpoint, got {target}.")
    known = read_settings(file)
    place = chosen_device(device)
    usual, names = folded_network(file, place, conv_backend, one_to_one=known.one_to_one)
    check_image_size("data.image_size", data.image_size, stride=usual.stride)
    if not known.single_class and names != list(data.class_names):
        classes = list(data.class_names)
        raise ValueError(f"The classes of the data must be {names}, as in checkpoint {file}, got {classes}.")
    content = recalibrated(file, data, images, inputs, place, conv_backend)
    try:
        write_checkpoint(content, target)
    except OSError as error:
        raise ValueError(f"output {target} cannot be written: {error.strerror}") from error
    print(f"{target}: {content[RECALIBRATED]['images']:,} training frames, inputs as in {inputs}")
    data.setup("validate")
    index = data.index("valid")
    is_first = dict(zip(index.image_ids(), first_half(index).tolist(), strict=True))
    scores: dict[str, list[SettingScores]] = {}
    for name, path in (("before", file), ("recalibrated", target)):
        network = usual if path == file else folded_network(path, place, conv_backend, one_to_one=known.one_to_one)[0]
        matches, half = judged(network, data, known, len(names), place, is_first)
        setting = Setting(known.score_threshold, known.iou_threshold)
        parts = [np.ones(len(half), dtype=np.bool_)]
        parts += [half, ~half] if half.any() and not half.all() else []
        scores[name] = [score_setting(matches, setting, part) for part in parts]
    wins = is_better(scores["recalibrated"], scores["before"])
    show(scores)
    where = "both halves" if len(scores["before"]) > 1 else "all frames, because no month has two clips"
    print(f"better on {where}: --ckpt_path {target}" if wins else f"not better on {where}: keep {file}")
    if json is not None:
        path = Path(json)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = {name: dict(zip(("all", *HALVES), map(entry, own), strict=False)) for name, own in scores.items()}
            record = {"weights": str(file), "output": str(target), "inputs": inputs, **content[RECALIBRATED]}
            write_json(path, record | {"recommended": wins, "scores": found}, allow_nan=False)
        except OSError as error:
            raise ValueError(f"Could not write {path}: {error.strerror}. Choose another --json.") from error


def check_options(images: int, inputs: Inputs, output: str | None) -> None:
    check_range("--images", images, ">= 2")
    check_choices("--inputs", [inputs], Inputs)
    if output is not None and Path(output).suffix != ".ckpt":
        raise ValueError(f"--output must end in .ckpt, got {output}.")


def bound_by_weights(options: Namespace) -> dict[str, Any]:
    """Return the data options that follow from the checkpoint of the given options."""
    check_options(options.images, options.inputs, options.output)
    record = read_record(checkpoint_file(options.run, options.checkpoint))
    bound = bound_options(record, is_gray=options.data.format == LTDV2)
    return {name: value for name, value in bound.items() if name.startswith("data.")}


def recalibrated(
    file: Path,
    data: DetectionDataModule,
    images: int,
    inputs: Inputs,
    device: torch.device,
    conv_backend: Convolution,
) -> dict[str, Any]:
    """Return the checkpoint with new statistics, without the state of the training, which cannot be resumed."""
    checkpoint = load_checkpoint(file)
    graph = read_network(file).to(device).requires_grad_(False)
    chosen = choose_convolution(device, PROBE_TIMEOUT_S) if conv_backend == "auto" else conv_backend
    arrange(graph, chosen)
    used = [0]
    recompute_statistics(graph, training_inputs(data, images, inputs, device, used))
    new = {f"{PREFIX}{name}": one.cpu() for name, one in graph.state_dict().items() if name.endswith(STATISTICS)}
    state = checkpoint["state_dict"]
    assert new.keys() <= state.keys(), "the graph has the layers of the checkpoint"
    content = {name: checkpoint[name] for name in OF_NETWORK if name in checkpoint}
    content["state_dict"] = state | {name: one.to(state[name].dtype) for name, one in new.items()}
    return content | {RECALIBRATED: {"from": file.name, "images": used[0]}}


def training_inputs(
    data: DetectionDataModule, images: int, inputs: Inputs, device: torch.device, used: list[int]
) -> Iterator[Tensor]:
    """Yield inputs of the network from random training frames; add the number of frames to `used[0]`.

    Neighbouring frames are near duplicates, so that frames are drawn from the whole split, by `data.seed`. Frames that
    cannot be read and an incomplete last batch are left out.
    """
    frames = data.open("train")
    frames.quarantined = quarantined_positions(data.quarantine, frames.index, "train")
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
            advance(len(batch))
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
    is_first: dict[str, bool],
) -> tuple[Matches, Any]:
    """Return the matches of the validation frames with the thresholds of the checkpoint, and `(F,)` the first half."""
    with counter("processed", len(data.index("valid"))) as advance:
        parts = collect(
            network,
            data,
            device,
            advance,
            score_threshold=known.score_threshold,
            limit=CANDIDATES,
            single_class=known.single_class,
            tta=False,
            stride=network.stride,
        )
    options = {name: getattr(known, name) for name in ("score_threshold", "iou_threshold", "max_detections")}
    options |= {"class_agnostic": known.class_agnostic, "one_to_one": known.one_to_one}
    matched = [match(suppressed(part, classes, **options), part.targets, classes) for part in parts]
    half = np.array([is_first[target.image_id] for part in parts for target in part.targets], dtype=np.bool_)
    return Matches.join(matched), half


def is_better(new: Sequence[SettingScores], old: Sequence[SettingScores]) -> bool:
    """Return whether the balanced score is higher on each half; on all frames if the split cannot be halved."""
    pairs = zip(new[1:] or new, old[1:] or old, strict=True)
    return all(one.rank() > other.rank() for one, other in pairs)


def show(scores: dict[str, list[SettingScores]]) -> None:
    table = number_table("frames", COLUMNS)
    for name, own in scores.items():
        for part, one in zip(("all", *HALVES), own, strict=False):
            table.add_row(f"{part}, {name}", *map(score_text, (one.map_50, one.variation, one.balanced)))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def entry(one: SettingScores) -> dict[str, float | None]:
    values = {"map_50": one.map_50, "cov": one.variation, "balanced": one.balanced}
    return {name: None if value is None or not np.isfinite(value) else value for name, value in values.items()}
