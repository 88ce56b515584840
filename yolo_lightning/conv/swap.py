"""Turn the convolutions and batch norms of a model into vendor-free ones, and back, in place."""

import warnings
from typing import TypeVar

from torch import nn
from torch.nn.modules.conv import _ConvNd

from yolo_lightning.conv.layer import GemmConv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_VENDOR_FREE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: GemmConv2d,
    nn.BatchNorm2d: VendorFreeBatchNorm2d,
}
_NATIVE = {replacement: native for native, replacement in _VENDOR_FREE.items()}


def swap_convs(module: ModuleT) -> ModuleT:
    """Make every `nn.Conv2d` a `GemmConv2d` and every `nn.BatchNorm2d` a `VendorFreeBatchNorm2d`, in place.

    Only the class of a layer changes, so parameters, ties between them, `requires_grad`, hooks, dtype, memory format
    and the training flag stay. Subclasses of the two, lazy and parametrized layers are left alone.

    Args:
        module: Any module; it is swapped itself where it is such a layer.

    Returns:
        The same module. A layer type that has no vendor-free form is named in one warning.
    """
    _assign_classes(module, _VENDOR_FREE)
    left = _left_native(module)
    if left:
        warnings.warn(
            "swap_convs leaves these convolutions on PyTorch's own dispatch, which may need the vendor library: "
            + ", ".join(left),
            stacklevel=2,
        )
    return module


def unswap_convs(module: ModuleT) -> ModuleT:
    """Undo `swap_convs` in place and return the same module."""
    _assign_classes(module, _NATIVE)
    return module


def _assign_classes(module: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]) -> None:
    for submodule in module.modules():
        # Exactly this type: a subclass has behaviour of its own that another class would silently drop.
        replacement = classes.get(type(submodule))
        if replacement is not None:
            submodule.__class__ = replacement


def _left_native(module: nn.Module) -> list[str]:
    return [
        f"{name or '(root)'} ({type(submodule).__name__})"
        for name, submodule in module.named_modules()
        if isinstance(submodule, _ConvNd) and not isinstance(submodule, GemmConv2d)
    ]
