"""Layers whose own `forward` calls functions of `torch.nn.functional`, such as padding and then `conv2d`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Proxy
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from yolo_lightning.conv.dimensions import conv1d, conv3d, conv_transpose
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.normalization import batch_norm, instance_norm
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.conv.vendor_free_layer import VendorFreeLayer

_CONVOLUTIONS: dict[Any, Callable[..., torch.Tensor]] = {
    F.conv1d: conv1d,
    F.conv2d: conv2d,
    F.conv3d: conv3d,
    F.conv_transpose1d: partial(conv_transpose, 1),
    F.conv_transpose2d: partial(conv_transpose, 2),
    F.conv_transpose3d: partial(conv_transpose, 3),
}
_NORMALIZATIONS: dict[Any, Callable[..., torch.Tensor]] = {F.batch_norm: batch_norm, F.instance_norm: instance_norm}


class OwnForward(VendorFreeLayer):
    """Base class of layers derived from a layer of `torch.nn` whose methods are kept.

    While `forward` runs, convolutions and normalizations of `torch.nn.functional` are computed without a vendor
    library. Derivatives that the layer computes itself, in an `autograd.Function`, are not converted.
    """

    plan: Plan = DEFAULT_PLAN
    """Selects the algorithm of each product; see `GemmLayer.plan`."""

    def forward(self, input: Any, *arguments: Any, **options: Any) -> Any:
        """Return the output of `forward` of the other base class."""
        if isinstance(input, Proxy):
            return self._as_node(input, *arguments, **options)
        with _VendorFreeFunctions(self.plan):
            return super().forward(input, *arguments, **options)


class _VendorFreeFunctions(TorchFunctionMode):
    """Replaces functions of `torch.nn.functional` in this thread."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func in _CONVOLUTIONS:
            return _CONVOLUTIONS[func](*args, **options, plan=self._plan)
        return _NORMALIZATIONS.get(func, func)(*args, **options)
