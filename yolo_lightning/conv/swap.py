"""Exchange of the convolution and batch normalization layers of any model, in place and reversible."""

from collections.abc import Collection
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from yolo_lightning.conv import layer as gemm
from yolo_lightning.conv import normalization
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_CONVOLUTIONS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: gemm.GemmConv1d,
    nn.Conv2d: gemm.GemmConv2d,
    nn.Conv3d: gemm.GemmConv3d,
    nn.ConvTranspose1d: gemm.GemmConvTranspose1d,
    nn.ConvTranspose2d: gemm.GemmConvTranspose2d,
    nn.ConvTranspose3d: gemm.GemmConvTranspose3d,
    nn.LazyConv1d: gemm.LazyGemmConv1d,
    nn.LazyConv2d: gemm.LazyGemmConv2d,
    nn.LazyConv3d: gemm.LazyGemmConv3d,
    nn.LazyConvTranspose1d: gemm.LazyGemmConvTranspose1d,
    nn.LazyConvTranspose2d: gemm.LazyGemmConvTranspose2d,
    nn.LazyConvTranspose3d: gemm.LazyGemmConvTranspose3d,
}
_VENDOR_FREE: dict[type[nn.Module], type[nn.Module]] = _CONVOLUTIONS | {
    nn.BatchNorm1d: normalization.VendorFreeBatchNorm1d,
    nn.BatchNorm2d: normalization.VendorFreeBatchNorm2d,
    nn.BatchNorm3d: normalization.VendorFreeBatchNorm3d,
    nn.LazyBatchNorm1d: normalization.LazyVendorFreeBatchNorm1d,
    nn.LazyBatchNorm2d: normalization.LazyVendorFreeBatchNorm2d,
    nn.LazyBatchNorm3d: normalization.LazyVendorFreeBatchNorm3d,
}
_NATIVE = {replacement: native for native, replacement in _VENDOR_FREE.items()}


def swap_convs(module: ModuleT, *, plan: Plan = DEFAULT_PLAN, skip: Collection[str] = ()) -> ModuleT:
    """Convert all convolution and batch normalisation layers of `torch.nn` to their vendor-free classes, in place.

    These are `Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`, `ConvTranspose3d`, `BatchNorm1d`,
    `BatchNorm2d`, `BatchNorm3d` and their lazy forms. A `Conv2d` becomes a `GemmConv2d`, and so on.

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
            which may use the vendor library: a synchronised or instance normalisation, or a convolution or
            normalisation that is parametrized or a subclass. The message lists the layers; no layer has been changed.
    """
    skipped = {id(submodule) for name in skip for submodule in _named(module, name).modules()}
    layers = [(name, layer) for name, layer in module.named_modules() if id(layer) not in skipped]
    refused = [f"{name or '(root)'} ({type(layer).__name__})" for name, layer in layers if _stays_native(layer)]
    if refused:
        raise ValueError(
            f"swap_convs has no vendor-free form of {', '.join(refused)}; supported are the convolution and BatchNorm "
            "layers of torch.nn, not their subclasses or parametrized forms; add layers to skip to keep PyTorch's "
            "implementation"
        )
    for _, layer in layers:
        # Exact type only: changing the class of a subclass would drop its behaviour silently.
        layer.__class__ = _VENDOR_FREE.get(type(layer), type(layer))
        if isinstance(layer, gemm.GemmLayer):
            layer.plan = plan
    return module


def unswap_convs(module: ModuleT) -> ModuleT:
    """Undo `swap_convs` in place and return the same module."""
    for layer in module.modules():
        if type(layer) in _CONVOLUTIONS.values():
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
