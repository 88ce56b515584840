"""Checkpoint averaging: the mean of several checkpoints of the same network.

Sources: "Averaging Weights Leads to Wider Optima and Better Generalization" (Izmailov et al. 2018, arXiv 1803.05407);
the average of the last few checkpoints is the older method (Vaswani et al. 2017, section 6.1). The interpolation
between runs is "Model soups" (Wortsman et al. 2022, arXiv 2203.05482).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION, INPUT, training_age
from yolo_lightning.checkpoints.torch_archive import check_tensors, load_checkpoint
from yolo_lightning.errors import UserError
from yolo_lightning.utils.nested_keys import flatten

AVERAGED = "averaged"  # key of an average in a checkpoint: names of the averaged files in order of training
OF_NETWORK = ("pytorch-lightning_version", "hyper_parameters", INPUT, CONFIGURATION, "epoch", "global_step")
"""Keys that an average copies from the newest checkpoint. It has no optimizer, loops, or `steps` and cannot be resumed;
without `steps`, `fit --resume` prefers any other checkpoint."""

NETWORK = ("variant", "class_names", "class_width", "single_class", "detections.one_to_one")
"""Hyperparameters that must be equal, besides the whole record of the input."""


def average_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of floating-point tensors, computed in float64; other tensors (counters) are those of the last.

    The running statistics of batch normalization are averaged like the weights. They approximate those of the averaged
    weights well for checkpoints near each other; Izmailov et al. recompute them from data, see `recalibrate`.

    Args:
        states: Tensors on the CPU with the same names and shapes, oldest first.
    """
    average = {name: tensor.clone() for name, tensor in states[-1].items()}
    for name, tensor in average.items():
        if tensor.is_floating_point():
            total = torch.zeros_like(tensor, dtype=torch.float64)
            for state in states:
                total += state[name]
            tensor.copy_(total / len(states))
    return average


def average_checkpoints(files: Sequence[Path]) -> dict[str, Any]:
    """Return a checkpoint whose `state_dict` is the mean of those of undamaged files, in any order.

    Raises:
        UserError: If the networks differ, or a file is itself an average.
    """
    ordered = sorted(files, key=training_age)
    checkpoints = [_read(file) for file in ordered]
    newest = checkpoints[-1]
    for file, checkpoint in zip(ordered, checkpoints, strict=True):
        _check_network(file, checkpoint, ordered[-1], newest)
    states = [checkpoint["state_dict"] for checkpoint in checkpoints]
    _check_distinct(ordered, states)
    average = {name: newest[name] for name in OF_NETWORK if name in newest}
    average["state_dict"] = average_states(states)
    return average | {AVERAGED: [file.name for file in ordered]}


def _check_distinct(files: Sequence[Path], states: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise a UserError if two files contain the same weights: copies, or best.ckpt and the step it was saved at."""
    for number, state in enumerate(states):
        for other in range(number):
            if all(torch.equal(tensor, states[other][name]) for name, tensor in state.items()):
                raise UserError(f"{files[other]} and {files[number]} contain the same weights: they would count twice")


def _read(file: Path) -> dict[str, Any]:
    """Return the parts of a checkpoint that an average needs, so that the memory of the others is released."""
    content = load_checkpoint(file)
    if AVERAGED in content:
        raise UserError(f"{file} is already an average of {', '.join(content[AVERAGED])}")
    return {name: content[name] for name in ("state_dict", *OF_NETWORK) if name in content}


def _check_network(file: Path, checkpoint: Mapping[str, Any], other: Path, newest: Mapping[str, Any]) -> None:
    """Raise a UserError for a checkpoint of another network than `newest`, or with non-finite values."""
    parameters = flatten(checkpoint.get("hyper_parameters", {}))
    expected_parameters = flatten(newest.get("hyper_parameters", {}))
    for name in NETWORK:
        if parameters.get(name) != expected_parameters.get(name):
            raise UserError(
                f"model.{name} is {parameters.get(name)} in {file} and {expected_parameters.get(name)} in {other}"
            )
    inputs = checkpoint.get(INPUT, {})
    expected_inputs = newest.get(INPUT, {})
    compared = ["background"]
    if inputs and expected_inputs:
        # These two act in evaluation only, where the average has those of the newest checkpoint.
        compared = sorted((inputs.keys() | expected_inputs.keys()) - {"resize", "category_ids"})
    for name in compared:
        value = inputs.get(name) or None
        expected_value = expected_inputs.get(name) or None
        if value != expected_value:
            raise UserError(f"the input's {name} is {value} in {file} and {expected_value} in {other}")
    check_tensors(checkpoint["state_dict"], str(file), newest["state_dict"], str(other))
