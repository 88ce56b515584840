"""How the weights change: parameter groups, optimizer, schedules, what is frozen, gradients between two updates.

`recipe` and `groups` are pure functions of the position in training and of the network; `optimizers` and `freezing`
apply what the user chose, `accumulation` keeps what a checkpoint between two updates must hold.
"""

from yolo_lightning.training.accumulation import Accumulation
from yolo_lightning.training.freezing import Freeze, freeze_parts, keep_norms_frozen
from yolo_lightning.training.optimizers import OptimizerChoice, apply_settings, check_same_optimizer, optimizer_maker
from yolo_lightning.training.parameter_groups import Group, parameter_groups
from yolo_lightning.training.recipe import OptimizerSettings, Recipe, decay_factor, scaled_weight_decay, settings_at

__all__ = [
    "Accumulation",
    "Freeze",
    "Group",
    "OptimizerChoice",
    "Recipe",
    "OptimizerSettings",
    "apply_settings",
    "check_same_optimizer",
    "decay_factor",
    "freeze_parts",
    "keep_norms_frozen",
    "optimizer_maker",
    "parameter_groups",
    "scaled_weight_decay",
    "settings_at",
]
