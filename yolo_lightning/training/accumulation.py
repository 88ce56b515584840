"""Gradients that are summed over several steps, and their part of a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.utils.activity import Activity, during


class Accumulation:
    """Counts the steps since the last optimizer step and stores their summed gradients in checkpoints.

    Checkpoints contain unscaled gradients, so that a run can be resumed with another precision.
    """

    def __init__(self) -> None:
        self.steps = 0  # since the last optimizer step
        self._loaded: dict[str, Tensor] = {}

    def state_dict(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> dict[str, Any]:
        """Return the number of steps and the gradients of `graph`, divided by the scale of `scaler`."""
        return {"steps": self.steps, "gradients": unscaled_gradients(graph, scaler)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the number of steps, and keep the gradients until `restore` is called."""
        self.steps = state.get("steps", 0)
        self._loaded = state.get("gradients", {})

    def restore(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> None:
        """Set the loaded gradients; call it when the parameters are on their device."""
        restore_gradients(graph, self._loaded, scaler)
        self._loaded = {}

    def reset(self, parameters: Sequence[nn.Parameter]) -> None:
        """Remove the summed gradients of these parameters."""
        for parameter in parameters:
            parameter.grad = None
        self.steps = 0


def unscaled_gradients(graph: nn.Module, scaler: torch.amp.GradScaler | None) -> dict[str, Tensor]:
    """Return the gradients of `graph` by the name of the parameter, divided by the scale of `scaler`."""
    scale = _scale_of(scaler)
    gradients = {name: parameter.grad for name, parameter in graph.named_parameters() if parameter.grad is not None}
    if scale == 1.0:
        return gradients
    return {name: gradient / scale for name, gradient in gradients.items()}


def restore_gradients(graph: nn.Module, gradients: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None) -> None:
    """Set the unscaled gradients of trainable parameters; the inverse of `unscaled_gradients`."""
    scale = _scale_of(scaler)
    for name, parameter in graph.named_parameters():
        if name not in gradients or not parameter.requires_grad:
            continue
        if gradients[name].is_sparse:  # of `nn.Embedding(sparse=True)`
            parameter.grad = gradients[name].to(parameter).mul(scale)
        else:
            parameter.grad = torch.empty_like(parameter).copy_(gradients[name]).mul_(scale)  # in its memory layout


def _scale_of(scaler: torch.amp.GradScaler | None) -> float:
    """Return the current loss scale: a power of two, so that dividing gradients by it is exact."""
    if scaler is None:
        return 1.0
    with during(Activity.DEVICE_WAIT):
        return float(scaler.get_scale())
