"""Registration of kernels as operators of `torch.library`, with a fake implementation for tensors without data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.kernels.verified import OptionalKernels

NAMESPACE = "yolo_lightning"

# The methods of the class have no annotations.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


LAUNCHES: dict[Any, Callable[..., Any]] = {}
"""For each operator the function that launches its kernels: the operator without its choice of a launcher.

With a `LaunchRecorder` and tensors on the meta device, the function reports the launches of the operator and computes
nothing.
"""


def operator(schema: str, fake: Callable[..., Any], kernels: OptionalKernels) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as the implementation of an operator on CPU and GPU and return the operator.

    The first argument of the function is the launcher of the kernels on the device of the first tensor.

    The plain registration is used instead of `torch.library.custom_op`, whose wrapper takes several times as long per
    call. The operators have no derivative formula: callers use them in an `autograd.Function`.

    Args:
        schema: Schema of the operator, without namespace.
        fake: Returns results with the shapes, dtypes and strides of the operator.
        kernels: Kernels that the function launches.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

        def compute(first: Tensor, *others: Any) -> Any:
            return function(kernels.required(first.device), first, *others)

        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, compute, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        registered = getattr(getattr(torch.ops, NAMESPACE), name).default
        LAUNCHES[registered] = function
        return registered

    return register
