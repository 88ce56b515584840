"""Takes a fit that has lost its way back to the last checkpoint at which all was well, without ending it."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import find_damage, training_age
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.run_files import CHECKPOINTS


def go_back(trainer: Trainer, module: LightningModule) -> Path | None:
    """Restore weights, running statistics, optimizer and what callbacks keep of the weights (the average).

    Position, schedules and order of the data stay where they are, so that the batches that led astray are behind.

    Args:
        trainer: In training; its run folder holds the checkpoints.
        module: Is changed.

    Returns:
        The checkpoint, or None if there is none; nothing has changed then.
    """
    folder = Path(trainer.default_root_dir) / CHECKPOINTS
    for path in sorted(folder.glob("*.ckpt"), key=training_age, reverse=True):
        if training_age(path)[0] > steps_begun(trainer) or find_damage(path) is not None:
            continue
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if is_good(checkpoint):
            restore(trainer, module, checkpoint)
            return path
    return None


def is_good(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint was written in training, not amid trouble, and holds finite values alone."""
    tally = checkpoint.get("nonfinite", {})
    in_trouble = tally.get("losses_in_a_row", 0) or tally.get("gradients_in_a_row", 0)
    states = [checkpoint.get(name) for name in ("state_dict", "current_model_state", "optimizer_states")]
    return bool(checkpoint.get("optimizer_states")) and not in_trouble and all(is_finite(state) for state in states)


def is_finite(tree: Any) -> bool:
    """Whether all tensors in nested dictionaries and lists are finite."""
    if isinstance(tree, Tensor):
        return bool(tree.isfinite().all())
    if isinstance(tree, dict | list):
        return all(is_finite(branch) for branch in (tree.values() if isinstance(tree, dict) else tree))
    return True


def restore(trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Put the weights and the optimizer's state of a checkpoint in place of the present ones."""
    module.load_state_dict(checkpoint["state_dict"])
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        callback.on_load_checkpoint(trainer, module, checkpoint)  # an average puts back the weights that it stands for
    trainer.strategy.load_optimizer_state_dict(checkpoint)
