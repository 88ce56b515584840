"""MuSGD: SGD with momentum, plus Muon's orthogonalized momentum for matrices and convolution weights.

As in Ultralytics 8.4 (`ultralytics.optim.MuSGD`), with equal results. Muon: Jordan et al. 2024, "Muon: An optimizer for
hidden layers in neural networks".
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration
ITERATIONS = 5
MAX_ROW_RATIO = 16
"""Matrices whose row counts differ by more than this factor are not padded to one batch."""


class MuSGD(Optimizer):
    """SGD with momentum; groups with `use_muon` also move along the orthogonalized momentum of the gradient.

    Args:
        params: Parameters or groups. All parameters of a group with `use_muon` have two or more dimensions.
        lr: Learning rate.
        momentum: Momentum of both parts, 0 to 1.
        weight_decay: L2 penalty of the SGD part.
        nesterov: Whether both parts look ahead.
        use_muon: Default of the groups.
        muon: Factor of the learning rate of the Muon part.
        sgd: Factor of the learning rate of the SGD part of groups with `use_muon`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        use_muon: bool = False,
        muon: float = 0.5,
        sgd: float = 0.5,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults | {"use_muon": use_muon})
        self.muon, self.sgd = muon, sgd

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters that have a gradient; return the result of `closure`, which computes gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        momentum, nesterov, rate = group["momentum"], group["nesterov"], group["lr"]
        gradients: Any = [parameter.grad for parameter in parameters]
        buffer = "momentum_buffer"
        if group["use_muon"]:
            updates = _muon_updates(gradients, self._buffers(parameters, buffer), momentum, nesterov=nesterov)
            torch._foreach_add_(parameters, updates, alpha=-(rate * self.muon))
            rate *= self.sgd
            buffer = "momentum_buffer_SGD"
        buffers = self._buffers(parameters, buffer)
        if group["weight_decay"] != 0:
            gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        moves = torch._foreach_add(gradients, buffers, alpha=momentum) if nesterov else buffers
        torch._foreach_add_(parameters, moves, alpha=-rate)

    def _buffers(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


def _muon_updates(gradients: list[Tensor], buffers: list[Tensor], momentum: float, *, nesterov: bool) -> list[Tensor]:
    """Return Muon's updates, each with the shape, memory format and dtype of its gradient; `buffers` are advanced.

    A weight `(O, I, H, W)` is a matrix with O rows. Matrices with equal columns are orthogonalized in one batch, padded
    with rows of zeros, which stay zero.
    """
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, gradients, alpha=1 - momentum)
    updates = list(buffers)
    if nesterov:
        updates = list(torch._foreach_mul(buffers, momentum))
        torch._foreach_add_(updates, gradients, alpha=1 - momentum)
    alike = defaultdict(list)
    for index, update in enumerate(updates):
        matrix = _as_matrix(update)
        scale = max(1, update.size(-2) / update.size(-1)) ** 0.5
        alike[matrix.size(1), scale, matrix.device, matrix.dtype].append((index, matrix))
    for (columns, scale, device, dtype), members in alike.items():
        members.sort(key=lambda member: -member[1].size(0))
        while members:
            rows = members[0][1].size(0)
            together = [member for member in members if rows <= MAX_ROW_RATIO * member[1].size(0)]
            members = members[len(together) :]
            stack = torch.zeros(len(together), rows, columns, device=device, dtype=dtype)
            for padded, (_, matrix) in zip(stack, together, strict=True):
                padded[: matrix.size(0)] = matrix
            stack = orthogonalised(stack).contiguous().to(dtype).mul_(scale)
            for padded, (index, matrix) in zip(stack, together, strict=True):
                updates[index] = like(padded[: matrix.size(0)], updates[index])
    return updates


def _as_matrix(weight: Tensor) -> Tensor:
    """Return a weight with its first dimension as rows, its columns in the order of its memory."""
    if is_channels_last(weight):
        return weight.permute(0, 2, 3, 1).flatten(1)
    return weight.flatten(1) if weight.ndim > 2 else weight.contiguous()


def like(matrix: Tensor, weight: Tensor) -> Tensor:
    """Return the result of `_as_matrix` in the shape and memory format of the weight."""
    if is_channels_last(weight):
        count, channels, height, width = weight.shape
        return matrix.view(count, height, width, channels).permute(0, 3, 1, 2)
    return matrix.view(weight.shape)


def is_channels_last(weight: Tensor) -> bool:
    is_dense = weight.ndim == 4 and not weight.is_contiguous()
    return is_dense and weight.is_contiguous(memory_format=torch.channels_last)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return an approximation of the nearest orthogonal matrices of `(B, rows, columns)`, in bfloat16.

    Five Newton-Schulz iterations bring all singular values to about 0.5 to 1.5.
    """
    found = matrices.bfloat16()
    found /= found.norm(dim=(-2, -1), keepdim=True) + 1e-7
    is_tall = found.size(-2) > found.size(-1)
    if is_tall:
        found = found.mT
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        product = found @ found.mT
        polynomial = torch.baddbmm(product, product, product, beta=second, alpha=third)
        found = torch.baddbmm(found, polynomial, found, beta=first)
    return found.mT if is_tall else found
