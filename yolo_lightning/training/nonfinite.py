"""Non-finite losses and gradients: count them, restore the newest checkpoint with finite weights, or stop."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils._pytree import tree_leaves

from yolo_lightning.checkpoints.checkpoint_file import find_damage, training_age
from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.utils.loop_position import steps_begun
from yolo_lightning.utils.rank_zero import rank_warn
from yolo_lightning.utils.run_files import CHECKPOINTS

NAMED_IMAGES = 64  # largest number of images in one message: a nominal batch


class NonFiniteError(RuntimeError):
    """Losses or gradients are not finite, and restored weights do not help.

    A restart with the same computation repeats the values. The supervisor lowers the level of the computation.
    """


@dataclass(slots=True)
class Tally:
    """Counts since training began; part of a checkpoint."""

    skipped: int = 0  # batches and optimizer steps
    losses_in_a_row: int = 0  # consecutive batches with a non-finite loss
    gradients_in_a_row: int = 0  # consecutive optimizer steps with a non-finite gradient
    rollbacks: int = 0  # to a checkpoint


class NonFiniteGuard:
    """Counts non-finite losses and gradients, logs the images, and stops a training that does not recover.

    Attributes:
        computation: Description of the implementation that computes the gradients. The module sets it before a
            checkpoint is loaded. Rollbacks with another computation do not lower the learning rate.
        lowers_precision: Whether the training is in mixed precision and its supervisor continues in float32 after a
            `NonFiniteError`. Then one checkpoint is restored, with the learning rates unchanged.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.computation = ""
        self.lowers_precision = False
        self.tally = Tally()
        self._images: list[str] = []

    @property
    def learning_rate_factor(self) -> float:
        return 1.0 if self.lowers_precision else self.settings.rollback_lr_factor**self.tally.rollbacks

    @property
    def _max_rollbacks(self) -> int:
        return min(1, self.settings.max_rollbacks) if self.lowers_precision else self.settings.max_rollbacks

    def state_dict(self) -> dict[str, Any]:
        return asdict(self.tally) | {"computation": self.computation}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; without the rollbacks, if they occurred with another computation."""
        counts = dict(state)
        saved_computation = counts.pop("computation", self.computation)
        self.tally = Tally(**counts)
        if saved_computation == self.computation:
            return
        if self.tally.rollbacks:
            rank_zero_info(
                f"non-finite values occurred with another computation ({saved_computation}; now {self.computation}): "
                "learning rates are those of the schedule"
            )
        self.tally = Tally(skipped=self.tally.skipped)

    def check_loss(self, is_finite: bool, image_ids: Sequence[str], step: int, parts: Mapping[str, Any]) -> bool:
        """Count the loss of one batch and return whether to restore a checkpoint; `parts` of the loss are logged."""
        if is_finite:
            self._images += image_ids
            self.tally.losses_in_a_row = 0
            return False
        self.tally.losses_in_a_row += 1
        values = ", ".join(f"{name} {float(value):.3g}" for name, value in parts.items())
        return self._skip(f"step {step}: the loss is not finite ({values})", image_ids, self.tally.losses_in_a_row)

    def check_gradient(self, is_finite: bool, step: int) -> bool:
        """Count the summed gradient of one optimizer step; see `check_loss`."""
        images = self._images
        self._images = []
        if is_finite:
            self.tally.gradients_in_a_row = 0
            return False
        self.tally.gradients_in_a_row += 1
        return self._skip(f"step {step}: the summed gradient is not finite", images, self.tally.gradients_in_a_row)

    def _skip(self, problem: str, image_ids: Sequence[str], consecutive: int) -> bool:
        message = f"{problem}; images {', '.join(image_ids[:NAMED_IMAGES])}"
        self.tally.skipped += 1
        must_roll_back = consecutive % self.settings.max_consecutive_nonfinite == 0
        if must_roll_back:
            self._check_rollbacks(message, consecutive)
            self.tally.rollbacks += 1
        rank_warn(f"{message}: skipped, {self.tally.skipped} since training began")
        return must_roll_back

    def _check_rollbacks(self, message: str, consecutive: int) -> None:
        """Raise a NonFiniteError if a further rollback is not allowed or cannot help.

        The count of consecutive values continues after a rollback, until a finite value of the same source.
        """
        problem = f"{message}: {consecutive} consecutive non-finite values after {self.tally.rollbacks} rollbacks"
        causes = f"the device or its libraries compute wrong values ({self.computation})"
        if "mixed" in self.computation:
            causes += ", trainer.precision must be 32-true"
        if self.tally.rollbacks >= self._max_rollbacks:
            raise NonFiniteError(f"{problem} (model.guard.max_rollbacks); {causes}, or model.recipe.lr0 is too high")
        if consecutive > self.settings.max_consecutive_nonfinite:
            raise NonFiniteError(
                f"{problem}, none of them finite since the last rollback; {causes}, or the weights of all "
                "checkpoints are too large: lower model.recipe.lr0"
            )


def roll_back(trainer: Trainer, module: LightningModule) -> Path | None:
    """Restore weights, running statistics, optimizer state and the weight average of EMA; return the checkpoint.

    Position, schedules and order of the data continue, so that the batches since the checkpoint are not repeated.
    Returns None, and changes nothing, if the run folder contains no checkpoint that can be used.
    """
    folder = Path(trainer.default_root_dir) / CHECKPOINTS
    for path in sorted(folder.glob("*.ckpt"), key=training_age, reverse=True):
        if training_age(path)[0] > steps_begun(trainer) or find_damage(path) is not None:
            continue
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError:  # whole, but with an object of the user's in the state of a callback or a module
            rank_zero_warn(f"{path} cannot be restored: it contains objects other than tensors and plain Python")
            continue
        if _is_good(checkpoint):
            module.load_state_dict(checkpoint["state_dict"])
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                callback.on_load_checkpoint(trainer, module, checkpoint)  # EMA restores average and current weights
            trainer.strategy.load_optimizer_state_dict(checkpoint)
            return path
    return None


def _is_good(checkpoint: dict[str, Any]) -> bool:
    """Whether all values of a training checkpoint are finite, and no non-finite value preceded it directly."""
    tally = checkpoint.get("nonfinite", {})
    if tally.get("losses_in_a_row", 0) or tally.get("gradients_in_a_row", 0):
        return False
    if not checkpoint.get("optimizer_states"):
        return False
    parts = [checkpoint.get(name) for name in ("state_dict", "current_model_state", "optimizer_states")]
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(parts) if isinstance(leaf, Tensor))
