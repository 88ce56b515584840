"""The mean of several checkpoints of one training: weights that need no further training and often score better.

Source: "Averaging Weights Leads to Wider Optima and Better Generalization" (Izmailov et al. 2018, arXiv 1803.05407);
averaging the last few checkpoints is the older, plainer form of it (Vaswani et al. 2017, section 6.1).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import CONFIGURATION, INPUT, find_damage, training_age
from yolo_lightning.utils.run_files import STEP_CHECKPOINTS

AVERAGED = "averaged"
"""Key of a checkpoint that is an average: names of the files that it was made of, in order of training."""

OF_NETWORK = ("pytorch-lightning_version", "hyper_parameters", INPUT, CONFIGURATION, "epoch", "global_step")
"""What an average takes over from the newest checkpoint. No optimizer, loops, or `steps`: it is no place in a training,
and without steps `fit --resume` looks at it last."""

NETWORK = ("variant", "class_names", "class_width")
"""Hyperparameters that make the network."""

NAMED_TENSORS = 3


def average_states(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of floating tensors, computed in float64; others (counters) as in the last state.

    The running statistics of batch normalisation are averaged as the weights are. They approximate those of the
    averaged weights, and do so well for checkpoints near each other; Izmailov et al. estimate them anew from data.

    Args:
        states: One or more, oldest first, with the same names and shapes; tensors on the CPU.

    Returns:
        Tensors of the last state's names, in its order and dtypes.

    Raises:
        ValueError: If names or shapes differ.
    """
    assert states, "nothing to average"
    newest = states[-1]
    for state in states:
        different = [name for name in newest if name not in state or state[name].shape != newest[name].shape]
        different += [name for name in state if name not in newest]
        if different:
            more = f" and {len(different) - NAMED_TENSORS:,} more" if len(different) > NAMED_TENSORS else ""
            raise ValueError(f"the networks differ in {', '.join(different[:NAMED_TENSORS])}{more}")
    return {
        name: mean([state[name] for state in states]) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in newest.items()
    }


def mean(tensors: Sequence[Tensor]) -> Tensor:
    """Mean in float64, in the dtype of the last tensor."""
    total = torch.zeros_like(tensors[-1], dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(tensors[-1].dtype)


def newest_steps(folder: Path, count: int) -> list[Path]:
    """The `count` checkpoints of a folder that have trained longest, oldest first.

    Only those that are numbered by steps: `last.ckpt` is another name of the newest, `best.ckpt` a copy of any.

    Raises:
        ValueError: If there are fewer.
    """
    found = sorted(folder.glob(STEP_CHECKPOINTS), key=training_age)
    if len(found) < count:
        raise ValueError(
            f"last is {count}, but {folder} holds {len(found)} of {STEP_CHECKPOINTS}; how many a fit keeps says `keep` "
            "of LastCheckpoint"
        )
    return found[-count:]


def average_checkpoints(files: Sequence[Path]) -> dict[str, Any]:
    """A checkpoint whose `state_dict` is the mean of those of `files`; nothing to continue a training from.

    Args:
        files: Two or more of our checkpoints, in any order.

    Raises:
        ValueError: If a file is named twice, is damaged, holds values that are not finite, or the networks differ.
    """
    if len(files) < 2:
        raise ValueError(f"{len(files)} checkpoints given, an average takes 2 and more")
    damaged = {file: damage for file in files if (damage := find_damage(file)) is not None}
    if damaged:
        listed = "; ".join(f"{file}: {damage}" for file, damage in damaged.items())
        raise ValueError(f"damaged checkpoints cannot be averaged, name others: {listed}")
    refuse_repeats(files)
    ordered = sorted(files, key=training_age)
    checkpoints = [read(file) for file in ordered]
    newest = checkpoints[-1]
    for file, checkpoint in zip(ordered, checkpoints, strict=True):
        check_network(file, checkpoint, ordered[-1], newest)
    average = {name: newest[name] for name in OF_NETWORK if name in newest}
    average["state_dict"] = average_states([checkpoint["state_dict"] for checkpoint in checkpoints])
    return average | {AVERAGED: [file.name for file in ordered]}


def refuse_repeats(files: Sequence[Path]) -> None:
    """Refuse one file under two names: `last.ckpt` is a hard link to a numbered one.

    Raises:
        ValueError: If there is one.
    """
    for number, file in enumerate(files):
        for other in files[:number]:
            if other.samefile(file):
                raise ValueError(f"{other} and {file} are the same checkpoint, it would count twice")


def read(file: Path) -> dict[str, Any]:
    """The parts of a checkpoint that an average needs; optimizer states are let go at once.

    Raises:
        ValueError: If it is an average itself.
    """
    content = torch.load(file, map_location="cpu", weights_only=True)
    if AVERAGED in content:
        raise ValueError(f"{file} is an average of {', '.join(content[AVERAGED])} already")
    return {name: content[name] for name in ("state_dict", *OF_NETWORK) if name in content}


def check_network(file: Path, checkpoint: Mapping[str, Any], other: Path, newest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another network, or with values that are not finite.

    Raises:
        ValueError: If it is one.
    """
    own, theirs = checkpoint.get("hyper_parameters", {}), newest.get("hyper_parameters", {})
    for name in NETWORK:
        if own.get(name) != theirs.get(name):
            raise ValueError(
                f"{file} has model.{name} {own.get(name)}, {other} has {theirs.get(name)}: the networks differ"
            )
    try:
        average_states([checkpoint["state_dict"], newest["state_dict"]])
    except ValueError as error:
        raise ValueError(f"{file} and {other}: {error}") from error
    bad = [name for name, tensor in checkpoint["state_dict"].items() if not tensor.isfinite().all()]
    if bad:
        raise ValueError(f"{file} cannot be averaged: {bad[0]} holds values that are not finite")
