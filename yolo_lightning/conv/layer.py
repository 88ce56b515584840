"""`torch.nn.Conv2d` with the vendor-free convolution, first layers for one-channel images, conversion of models."""

from collections.abc import Collection
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from yolo_lightning.conv.algorithms.problem import IntOrPair, looks_channels_last
from yolo_lightning.conv.functional import conv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class GemmConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` computed by `yolo_lightning.conv.conv2d`, with equal constructor, state_dict and results.

    Maps `(N, C, H, W)` or `(C, H, W)` to `(N, O, H', W')` or `(O, H', W')` in the same dtype.
    """

    plan: Plan = DEFAULT_PLAN
    """Selects the algorithm of each product, also in copies of the layer. `swap_convs` sets the plan of a model."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: IntOrPair | str = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        # From the parameter: `weight` may be derived from it and have lost the layout.
        memory_format = torch.channels_last if looks_channels_last(self.weight) else None
        return conv2d(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            plan=self.plan,
            memory_format=memory_format,
        )


class GrayConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` that also accepts one channel, `(N, 1, H, W)`, and treats it as repeated to `in_channels`.

    Convolution is linear: with equal input channels the weight can be summed over its channels. The result is that of
    the expanded image, with `1 / in_channels` of the input and of the multiplications. The parameter keeps its shape
    and receives the gradient that an expanded image would give. Supports one group only.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output: Tensor = super()._conv_forward(input, _weight_for(input, weight), bias)
        return output


class GrayGemmConv2d(GemmConv2d):
    """`GrayConv2d` with the vendor-free convolution."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, _weight_for(input, weight), bias)


def _weight_for(input: Tensor, weight: Tensor) -> Tensor:
    return weight.sum(1, keepdim=True) if input.size(-3) == 1 else weight


_VENDOR_FREE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: GemmConv2d,
    nn.BatchNorm2d: VendorFreeBatchNorm2d,
}
_NATIVE = {replacement: native for native, replacement in _VENDOR_FREE.items()}


def swap_convs(module: ModuleT, *, plan: Plan = DEFAULT_PLAN, skip: Collection[str] = ()) -> ModuleT:
    """Convert every `nn.Conv2d` to `GemmConv2d` and every `nn.BatchNorm2d` to `VendorFreeBatchNorm2d`, in place.

    Only the class of a layer changes. Parameters, shared parameters, `requires_grad`, hooks, dtype, memory format and
    the training flag are preserved. Calls of `torch.nn.functional` in other modules are not converted.

    Args:
        module: Any module, which may itself be such a layer.
        plan: Selects the algorithms of all convolutions.
        skip: Names of submodules, as in `named_modules`, that are not converted, including their children.

    Returns:
        The same module.

    Raises:
        ValueError: If `skip` contains an unknown name, or if a layer outside `skip` would keep PyTorch's dispatch,
            which may use the vendor library: a convolution or normalisation that is 1-D, 3-D, transposed, lazy,
            parametrized or a subclass. The message lists the layers, and no layer has been changed.
    """
    skipped = {id(submodule) for name in skip for submodule in _named(module, name).modules()}
    layers = [(name, layer) for name, layer in module.named_modules() if id(layer) not in skipped]
    refused = [f"{name or '(root)'} ({type(layer).__name__})" for name, layer in layers if _stays_native(layer)]
    if refused:
        raise ValueError(
            f"swap_convs has no vendor-free form of {', '.join(refused)}; only Conv2d and BatchNorm2d are supported, "
            "not their subclasses, lazy or parametrized forms; add layers to skip to keep PyTorch's implementation"
        )
    for _, layer in layers:
        # Exact type only: changing the class of a subclass would drop its behaviour silently.
        layer.__class__ = _VENDOR_FREE.get(type(layer), type(layer))
        if isinstance(layer, GemmConv2d):
            layer.plan = plan
    return module


def unswap_convs(module: ModuleT) -> ModuleT:
    """Undo `swap_convs` in place and return the same module."""
    for layer in module.modules():
        if type(layer) is GemmConv2d:
            vars(layer).pop("plan", None)
        layer.__class__ = _NATIVE.get(type(layer), type(layer))
    return module


def _named(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise ValueError(f"skip contains {name!r}, which is not a submodule: {error}") from error


def _stays_native(layer: nn.Module) -> bool:
    # _NormBase is the base class of batch and instance norms, which share the dispatch to the vendor library.
    is_candidate = isinstance(layer, (_ConvNd, _NormBase))
    return is_candidate and type(layer) not in _VENDOR_FREE and not isinstance(layer, tuple(_NATIVE))
