"""Turn the convolutions and batch norms of a model into vendor-free ones, and back, in place."""

from collections.abc import Collection
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from yolo_lightning.conv.layer import GemmConv2d
from yolo_lightning.conv.normalization import VendorFreeBatchNorm2d
from yolo_lightning.conv.plan import FIXED, Plan

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_VENDOR_FREE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: GemmConv2d,
    nn.BatchNorm2d: VendorFreeBatchNorm2d,
}
_NATIVE = {replacement: native for native, replacement in _VENDOR_FREE.items()}


def swap_convs(module: ModuleT, *, plan: Plan = FIXED, skip: Collection[str] = ()) -> ModuleT:
    """Make every `nn.Conv2d` a `GemmConv2d` and every `nn.BatchNorm2d` a `VendorFreeBatchNorm2d`, in place.

    Only the class of a layer changes, so parameters, ties between them, `requires_grad`, hooks, dtype, memory format
    and the training flag stay. Calls of `torch.nn.functional` in the code of other modules are not seen.

    Args:
        module: Any module; it is swapped itself where it is such a layer.
        plan: Decides, for all convolutions together, which algorithm computes what.
        skip: Names of submodules, as `named_modules` gives them, that stay as they are with all that is below them.

    Returns:
        The same module.

    Raises:
        ValueError: If `skip` names no submodule, or a layer outside of it would stay on PyTorch's own dispatch, which
            may need the vendor library: a convolution or normalisation of another dimension, transposed, lazy or
            parametrized, or of a class of its own. The layers are named and nothing has been changed.
    """
    skipped = {id(submodule) for name in skip for submodule in _named(module, name).modules()}
    layers = [(name, layer) for name, layer in module.named_modules() if id(layer) not in skipped]
    refused = [f"{name or '(root)'} ({type(layer).__name__})" for name, layer in layers if _stays_native(layer)]
    if refused:
        raise ValueError(
            f"swap_convs has no vendor-free form of {', '.join(refused)}; it knows Conv2d and BatchNorm2d themselves, "
            "not subclasses, lazy or parametrized ones; name in skip what may stay on PyTorch's own dispatch"
        )
    for _, layer in layers:
        # Exactly this type: a subclass has behaviour of its own that another class would silently drop.
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
        raise ValueError(f"skip names {name!r}, which is no submodule: {error}") from error


def _stays_native(layer: nn.Module) -> bool:
    # _NormBase is the base of batch and instance norms, which share the dispatch to the vendor library.
    is_candidate = isinstance(layer, (_ConvNd, _NormBase))
    return is_candidate and type(layer) not in _VENDOR_FREE and not isinstance(layer, tuple(_NATIVE))
