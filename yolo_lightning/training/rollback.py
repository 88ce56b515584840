"""Restore the newest checkpoint with finite weights, in process."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from yolo_lightning.checkpoints.checkpoint_file import find_damage, training_age
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.run_files import CHECKPOINTS


def roll_back(trainer: Trainer, module: LightningModule) -> Path | None:
    """Restore weights, running statistics, optimizer state and the weight average of EMA; return the checkpoint.

    Position, schedules and order of the data continue, so that the batches since the checkpoint are not repeated.
    Returns None, and changes nothing, if the run folder contains no checkpoint that can be used.
    """
    folder = Path(trainer.default_root_dir) / CHECKPOINTS
    for path in sorted(folder.glob("*.ckpt"), key=training_age, reverse=True):
        if training_age(path)[0] > steps_begun(trainer) or find_damage(path) is not None:
            continue
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if is_good(checkpoint):
            module.load_state_dict(checkpoint["state_dict"])
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                callback.on_load_checkpoint(trainer, module, checkpoint)  # EMA restores average and current weights
            trainer.strategy.load_optimizer_state_dict(checkpoint)
            return path
    return None


def is_good(checkpoint: dict[str, Any]) -> bool:
    """Whether all values of a training checkpoint are finite, and no non-finite value preceded it directly."""
    tally = checkpoint.get("nonfinite", {})
    follows_nonfinite = tally.get("losses_in_a_row", 0) or tally.get("gradients_in_a_row", 0)
    states = [checkpoint.get(name) for name in ("state_dict", "current_model_state", "optimizer_states")]
    return bool(checkpoint.get("optimizer_states")) and not follows_nonfinite and all(map(is_finite, states))


def is_finite(tree: Any) -> bool:
    """Whether all tensors in nested dictionaries and lists are finite."""
    if isinstance(tree, Tensor):
        return bool(tree.isfinite().all())
    if isinstance(tree, dict | list):
        return all(is_finite(branch) for branch in (tree.values() if isinstance(tree, dict) else tree))
    return True
