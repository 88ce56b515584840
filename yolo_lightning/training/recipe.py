"""YOLOv8's optimization recipe: hyperparameters and groups of parameters. `schedule.py` contains the schedules."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal, Self, get_args

from lightning.pytorch.cli import OptimizerCallable

from yolo_lightning.training.recipe_limits import RECIPE_LIMITS
from yolo_lightning.utils.choices import AUTO, settings_group

OptimizerName = Literal["SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "MuSGD"]
OptimizerChoice = Literal["auto"] | OptimizerName | OptimizerCallable
"""A name, with Ultralytics' arguments, or a function of parameter groups, which jsonargparse makes of a class path."""
OPTIMIZERS = (*get_args(OptimizerName), "auto")
AUTO_VALUES = ("nominal_batch", "warmup_epochs")
"""Names of the hyperparameters that can be `auto`."""
FEWEST_OPTIMIZER_STEPS = 2000


class Group(StrEnum):
    """Parameter group. Only weights decay; biases have a warm-up of their own."""

    WEIGHT = "weight"
    NORMALIZATION = "normalisation"
    BIAS = "bias"


@settings_group("model.recipe", **RECIPE_LIMITS)
class Recipe:
    """Optimization; the defaults are YOLOv8's.

    Attributes:
        optimizer: SGD (Nesterov), Adam, AdamW, Adamax, NAdam, RAdam, RMSprop or MuSGD, with Ultralytics' arguments; or
            the path of an optimizer class with its arguments. Learning rate, decay and momentum are set by
            `model.recipe`. `auto` selects as Ultralytics: MuSGD for more than 10,000 optimizer steps, else AdamW, and
            their `lr0`.
        lr0: Learning rate after warm-up, > 0.
        lrf: Final learning rate as a fraction of `lr0`, 0 to 1.
        momentum: Momentum after warm-up, 0 to 1; for Adam's family the first beta, without warm-up.
        weight_decay: L2 decay of convolution weights at the nominal batch, >= 0.
        warmup_epochs: Length of the warm-up, epochs, >= 0. `auto`: 3, but at most a tenth of the training.
        warmup_momentum: Momentum at the start of the warm-up, 0 to 1.
        warmup_bias_lr: Learning rate of biases at the start of the warm-up, >= 0.
        cosine: Decay the learning rate along a half cosine instead of a line.
        nominal_batch: Number of images whose gradients are summed into one optimizer step, >= 1. `auto`: 64, halved
            until the training has 2,000 optimizer steps, but not below the batch.
        clip_norm: Largest L2 norm of the summed gradients, >= 0; 0 disables clipping.
        multi_scale: Multi-scale training, >= 0 and < 1. In every step, the longer side of the input is drawn between
            `(1 - multi_scale)` and `(1 + multi_scale)` times the image size and rounded to the stride. 0 disables it.
        statistics_batches: Before each validation, the running statistics of batch normalization are recomputed from
            this number of the newest batches of the epoch, >= 0, and are stored with the evaluated weights. 0 keeps the
            exponential averages of the training, as Ultralytics.
    """

    optimizer: OptimizerChoice = "SGD"
    lr0: float = 0.01
    lrf: float = 0.01
    momentum: float = 0.937
    weight_decay: float = 5e-4
    warmup_epochs: float | Literal["auto"] = 3.0
    warmup_momentum: float = 0.8
    warmup_bias_lr: float = 0.1
    cosine: bool = False
    nominal_batch: int | Literal["auto"] = 64
    clip_norm: float = 10.0
    multi_scale: float = 0.0
    statistics_batches: int = 8

    def __deepcopy__(self, memo: object) -> Self:
        """Return the recipe itself, so that copies of the module do not copy the parser behind a class path."""
        return self


def settled(value: float | str) -> float:
    """Return a hyperparameter that is a number by now; see `with_numbers`."""
    assert not isinstance(value, str), "`with_numbers` replaces auto before training starts"
    return value


def with_numbers(
    recipe: Recipe, *, epoch_images: int, epochs: int, batch_size: int, saved: Mapping[str, float]
) -> Recipe:
    """Return the recipe with numbers instead of `auto`.

    Args:
        recipe: The configured recipe.
        epoch_images: Images per epoch over all ranks.
        epochs: Epochs of the whole training.
        batch_size: Images per step over all ranks.
        saved: Numbers in the checkpoint that is resumed, by name, which are kept.
    """
    numbers: dict[str, Any] = {
        "nominal_batch": automatic_nominal_batch(epoch_images * epochs, batch_size),
        "warmup_epochs": min(settled(Recipe.warmup_epochs), epochs / 10),
        **saved,
    }
    return replace(recipe, **{name: numbers[name] for name in AUTO_VALUES if getattr(recipe, name) == AUTO})


def automatic_nominal_batch(images: int, batch_size: int) -> int:
    """Return 64, halved while the training on `images` images has fewer than 2,000 optimizer steps, at least the batch.

    A training of a few hundred images would otherwise end after a few hundred optimizer steps.
    """
    nominal_batch = Recipe.nominal_batch
    assert isinstance(nominal_batch, int)
    while nominal_batch // 2 >= batch_size and images < FEWEST_OPTIMIZER_STEPS * nominal_batch:
        nominal_batch //= 2
    return nominal_batch
