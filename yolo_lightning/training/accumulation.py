"""Gradients summed since the last update, and how a checkpoint keeps them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

NamedParameters = Iterable[tuple[str, nn.Parameter]]


class Accumulation:
    """Counts the steps since the last update, and carries their summed gradients through a checkpoint.

    Gradients are kept unscaled, so that a run may resume with another precision.

    Attributes:
        steps: Steps since the last update.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._loaded: dict[str, Tensor] = {}

    def state(self, parameters: NamedParameters, scaler: torch.amp.GradScaler | None = None) -> dict[str, Any]:
        """Steps and gradients, as a checkpoint holds them.

        Args:
            parameters: Names and parameters of the graph.
            scaler: What scales the loss, and so the gradients, under precision 16-mixed.
        """
        scale = scale_of(scaler)
        gradients = {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}
        return {
            "steps": self.steps,
            "gradients": {name: gradient if scale == 1.0 else gradient / scale for name, gradient in gradients.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Remember what `state` returned, until the parameters are where they will train."""
        self.steps, self._loaded = state["steps"], state["gradients"]

    def restore(self, parameters: NamedParameters, scaler: torch.amp.GradScaler | None = None) -> None:
        """Give the parameters their gradients back, except for those that are frozen; arguments as in `state`."""
        scale = scale_of(scaler)
        for name, parameter in parameters:
            if name in self._loaded and parameter.requires_grad:
                parameter.grad = self._loaded[name].to(parameter) * scale
        self._loaded = {}


def scale_of(scaler: torch.amp.GradScaler | None) -> float:
    """What gradients are multiplied by until the next update: a power of two, so that dividing by it is exact."""
    return 1.0 if scaler is None else float(scaler.get_scale())
