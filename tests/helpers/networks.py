"""Networks with random weights that return detections for every image."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.detection_settings import DetectionSettings
from yolo_lightning.model.loss_settings import LossSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.guard_settings import GuardSettings
from yolo_lightning.training.recipe import Recipe

Module = TypeVar("Module", bound=YOLOModule)

GROUPS: dict[str, Any] = {
    "recipe": Recipe,
    "loss": LossSettings,
    "convolution": ConvolutionSettings,
    "detections": DetectionSettings,
    "guard": GuardSettings,
}


def module_of(kind_of_module: type[Module] = YOLOModule, **settings: Any) -> Module:  # type: ignore[assignment]
    """Return a module with settings by the last part of their keys, such as `lr0` or `backend`."""
    groups = {}
    for group, kind in GROUPS.items():
        names = [field.name for field in fields(kind) if field.name in settings]
        groups[group] = kind(**{name: settings.pop(name) for name in names})
    return kind_of_module(**settings, **groups)


def enliven(graph: Any) -> None:
    """Draw weights with which boxes and scores differ from place to place, and scores are high.

    Attention has smaller weights: a softmax of large values selects one place, and the rounding of float32 would decide
    which one.
    """
    for name, layer in graph.named_modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.requires_grad:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # signals do not fade
            if ".qkv." in name:
                layer.weight.data.mul_(0.5)
    head = graph.model[-1]
    for branch in (head.cv3, getattr(head, "one2one_cv3", None) or ()):
        for level in branch:
            torch.nn.init.zeros_(level[-1].bias)


def lively_checkpoint(folder: Path, *remembered: str, **arguments: Any) -> Path:
    """A checkpoint of such a network in a folder.

    Args:
        folder: Exists.
        remembered: Arguments that the checkpoint keeps, besides those that say how to build the network.
        arguments: Of `module_of`.
    """
    torch.manual_seed(0)
    module = module_of(**arguments)
    enliven(module.graph)
    names = ("variant", "class_names", "class_width", *remembered)
    parameters = {name: module.hparams[name] for name in names}
    content = {"state_dict": module.state_dict(), "hyper_parameters": parameters}
    write_checkpoint(content | {"pytorch-lightning_version": "2.6.0"}, folder / "best.ckpt")
    return folder / "best.ckpt"
