"""What Lightning's `BaseFinetuning` has unfrozen, as a part of a checkpoint.

When a fit resumes, Lightning freezes all parts again. Can be removed when Lightning unfreezes them:
https://github.com/Lightning-AI/pytorch-lightning/issues/21901.
"""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch.nn.modules.batchnorm import _BatchNorm

from yolo_lightning.utils.trainer_callbacks import callbacks_of


def frozen_parts(trainer: Trainer, module: LightningModule) -> dict[str, list[str]] | None:
    """Return the names of the frozen parameters, and of the normalization layers whose statistics are frozen.

    None if the Trainer has no callback of the class `BaseFinetuning`.
    """
    if not callbacks_of(trainer, BaseFinetuning):
        return None
    return {
        "parameters": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "statistics": [name for name, layer in _normalization_layers(module) if not layer.track_running_stats],
    }


def restore_frozen_parts(trainer: Trainer, module: LightningModule, frozen: dict[str, list[str]] | None) -> None:
    """Freeze the parts that `frozen_parts` has returned, and unfreeze all others; call it when training starts."""
    if frozen is None or not callbacks_of(trainer, BaseFinetuning):
        return
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen["parameters"])
    for name, layer in _normalization_layers(module):
        layer.track_running_stats = name not in frozen["statistics"]


def _normalization_layers(module: LightningModule) -> list[tuple[str, _BatchNorm]]:
    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
