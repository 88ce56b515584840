"""Registration of kernels as operators of `torch.library`, with a fake implementation for tensors without data."""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "yolo_lightning"

# The methods of the class have no annotations.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as the implementation of an operator on CPU and GPU and return the operator.

    The plain registration is used instead of `torch.library.custom_op`, whose wrapper takes several times as long per
    call. The operators have no derivative formula: callers use them in an `autograd.Function`.

    Args:
        schema: Schema of the operator, without namespace.
        fake: Returns results with the shapes, dtypes and strides of the operator.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, function, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        return getattr(getattr(torch.ops, NAMESPACE), name).default

    return register
