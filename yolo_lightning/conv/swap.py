"""Exchange of the convolution and normalization layers of any model, in place and reversible."""

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.jit import ScriptModule
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from yolo_lightning.conv import layer as gemm, normalization
from yolo_lightning.conv.own_forward import OwnForward
from yolo_lightning.conv.plan import DEFAULT_PLAN, Plan
from yolo_lightning.conv.unregistered_layers import unregistered_layers
from yolo_lightning.conv.vendor_free_layer import VendorFreeLayer
from yolo_lightning.errors import UserError

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_CONVOLUTIONS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: gemm.GemmConv1d,
    nn.Conv2d: gemm.GemmConv2d,
    nn.Conv3d: gemm.GemmConv3d,
    nn.ConvTranspose1d: gemm.GemmConvTranspose1d,
    nn.ConvTranspose2d: gemm.GemmConvTranspose2d,
    nn.ConvTranspose3d: gemm.GemmConvTranspose3d,
}
_VENDOR_FREE: dict[type[nn.Module], type[nn.Module]] = _CONVOLUTIONS | {
    nn.BatchNorm1d: normalization.VendorFreeBatchNorm1d,
    nn.BatchNorm2d: normalization.VendorFreeBatchNorm2d,
    nn.BatchNorm3d: normalization.VendorFreeBatchNorm3d,
    nn.InstanceNorm1d: normalization.VendorFreeInstanceNorm1d,
    nn.InstanceNorm2d: normalization.VendorFreeInstanceNorm2d,
    nn.InstanceNorm3d: normalization.VendorFreeInstanceNorm3d,
}
_LAZY = {getattr(nn, f"Lazy{native.__name__}"): replacement for native, replacement in _VENDOR_FREE.items()}
_NATIVE = {replacement: native for native, replacement in _VENDOR_FREE.items()}
_ADAPTED: dict[type[nn.Module], type[nn.Module]] = {}
"""Classes that `_adapted` has made, and the lazy classes or subclasses of native layers for which it has made them."""

_WITHOUT_EFFECT = frozenset(
    (
        "__annotations__",
        "__constants__",
        "__doc__",
        "__firstlineno__",
        "__init__",
        "__module__",
        "__static_attributes__",
    )
)
"""Attributes of a subclass that do not change how a layer computes."""
ULTRALYTICS_EVENT = "on_pretrain_routine_end"
"""Event of Ultralytics' trainer after it has built its network and the moving average of the network."""
NAMED_LAYERS = 5  # Maximum number of layers in a warning
_OF_EVERY_CLASS = frozenset(("__dict__", "__weakref__"))


def swap_convs(module: ModuleT, *, plan: Plan = DEFAULT_PLAN, skip: Collection[str] = ()) -> ModuleT:
    """Convert all convolution and normalization layers of `torch.nn` to their vendor-free classes, in place.

    These are `Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`, `ConvTranspose3d`, `BatchNorm1d`,
    `BatchNorm2d`, `BatchNorm3d`, `InstanceNorm1d`, `InstanceNorm2d`, `InstanceNorm3d` and their lazy forms. A `Conv2d`
    becomes a `GemmConv2d`, and so on. A subclass that overrides nothing but the constructor, such as torchvision's
    `Conv3DSimple`, becomes a class derived from both. A subclass with methods of its own, such as a `Conv2d` that pads
    its input first, or `SyncBatchNorm`, keeps these methods; the functions of `torch.nn.functional` that they call are
    computed without a vendor library. A parametrized layer stays parametrized.

    Only the class of a layer changes. Parameters, shared parameters, `requires_grad`, hooks, dtype, memory format and
    the training flag are preserved. Calls of `torch.nn.functional` in other modules are not converted. Layers in plain
    lists, tuples and dictionaries are no submodules and are not converted; a warning names them.

    Args:
        module: Any module, which may itself be such a layer.
        plan: Selects the algorithms of all convolutions.
        skip: Names of submodules, as in `named_modules`, that are not converted, including their children.

    Returns:
        The same module.

    Raises:
        UserError: If `module` is not a module, `plan` not a plan or `skip` a text, if `skip` contains an unknown name,
            or if a layer outside `skip` would keep PyTorch's dispatch, which may use the vendor library: a subclass of
            a lazy layer, or a layer that `torch.ao.quantization` has prepared. The message lists the layers; no layer
            has been changed.
    """
    _check_arguments(module, plan, skip)
    skipped = {id(submodule) for name in skip for submodule in _named(module, name).modules()}
    layers = [(name, layer) for name, layer in module.named_modules() if id(layer) not in skipped]
    refused = [f"{name or '(root)'} ({type(layer).__name__})" for name, layer in layers if _stays_native(layer)]
    if refused:
        raise UserError(
            f"swap_convs has no vendor-free form of {', '.join(refused)}; supported are the convolution, BatchNorm and "
            "InstanceNorm layers of torch.nn and their subclasses, not subclasses of lazy layers and layers prepared "
            "for quantization; add layers to skip to keep PyTorch's implementation"
        )
    for _, layer in layers:
        layer.__class__ = _replacement(layer) or type(layer)
        if isinstance(layer, gemm.GemmLayer | OwnForward):
            layer.plan = plan
    _warn_of_new_network(module)
    _warn_of_unregistered(
        "swap_convs has not converted",
        [(name, layer) for name, layer in unregistered_layers(module, skipped) if _replacement(layer) is not None],
    )
    return module


def unswap_convs(module: ModuleT) -> ModuleT:
    """Undo `swap_convs` in place and return the same module."""
    if not isinstance(module, nn.Module):
        raise UserError(f"unswap_convs converts a torch.nn.Module, got {module!r}")
    for layer in module.modules():
        native = _exchanged(layer, _native_class)
        if native is not None:
            layer.__class__ = native
            vars(layer).pop("plan", None)
    _warn_of_unregistered(
        "unswap_convs has not converted",
        [(name, layer) for name, layer in unregistered_layers(module) if isinstance(layer, VendorFreeLayer)],
    )
    return module


def _check_arguments(module: Any, plan: Any, skip: Any) -> None:
    """Raise a UserError if an argument of `swap_convs` has another type."""
    if not isinstance(module, nn.Module):
        raise UserError(f"swap_convs converts a torch.nn.Module, got {module!r:.100}")
    if any(isinstance(submodule, ScriptModule) for submodule in module.modules()):
        raise UserError(
            "swap_convs converts a module before torch.jit.trace, got a ScriptModule, whose layers cannot be exchanged"
        )
    if not isinstance(skip, Collection) or isinstance(skip, str) or not all(isinstance(name, str) for name in skip):
        raise UserError(f"skip must be a list of names, as ['backbone.conv1'], got {skip!r}")
    if not isinstance(plan, Plan):
        raise UserError(f"plan must be a Plan or an AutotunedPlan, got {plan!r}")


def _warn_of_new_network(module: nn.Module) -> None:
    """Warn if `YOLO.train` would replace a swapped network, which is that of a `YOLO` object or the object itself."""
    # YOLO gives its network the attribute. The networks of trainers and of this package do not have the attribute.
    if type(module).__module__.startswith("ultralytics.") and hasattr(module, "task"):
        warnings.warn(
            "YOLO.train() builds a new network with PyTorch's layers and does not use the swapped ones; to train, call "
            f"yolo.add_callback({ULTRALYTICS_EVENT!r}, yolo_lightning.conv.swap_ultralytics_trainer)",
            stacklevel=3,
        )


def _warn_of_unregistered(failure: str, layers: Sequence[tuple[str, nn.Module]]) -> None:
    """Warn of layers that modules hold without `nn.Module` knowing about them."""
    if layers:
        names = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in layers[:NAMED_LAYERS])
        more = f" and {len(layers) - NAMED_LAYERS:,} more" if len(layers) > NAMED_LAYERS else ""
        warnings.warn(
            f"{failure} {names}{more}: layers in plain lists and dictionaries are no "
            "submodules; use torch.nn.ModuleList or torch.nn.ModuleDict, or convert each of these layers alone",
            stacklevel=3,
        )


def _named(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise UserError(f"skip contains {name!r}, which is not a submodule: {error}") from error


def _stays_native(layer: nn.Module) -> bool:
    # _NormBase is the base class of batch and instance norms, which share the dispatch to the vendor library.
    is_candidate = isinstance(layer, _ConvNd | _NormBase) and not isinstance(layer, VendorFreeLayer)
    return is_candidate and _replacement(layer) is None


def _replacement(layer: nn.Module) -> type[nn.Module] | None:
    """Return the vendor-free class of a layer; None if there is none, or if the layer already has one."""
    if getattr(layer, "qconfig", None) is not None:
        return None
    return _exchanged(layer, _vendor_free_class)


def _exchanged(
    layer: nn.Module, exchange: Callable[[type[nn.Module]], type[nn.Module] | None]
) -> type[nn.Module] | None:
    """Return the result of `exchange` for the class of a layer, which stays parametrized if it is."""
    layer_class = type(layer)
    if not is_parametrized(layer):
        return exchange(layer_class)
    # `register_parametrization` derives a class for this layer from the class that the layer had.
    base = exchange(layer_class.__bases__[0])
    if base is None:
        return None
    attributes = {name: value for name, value in vars(layer_class).items() if name not in _OF_EVERY_CLASS}
    return type(f"Parametrized{base.__name__}", (base,), attributes)


def _native_class(layer_class: type[nn.Module]) -> type[nn.Module] | None:
    return _ADAPTED.get(layer_class) or _NATIVE.get(layer_class)


def _vendor_free_class(layer_class: type[nn.Module]) -> type[nn.Module] | None:
    if layer_class in _VENDOR_FREE:
        return _VENDOR_FREE[layer_class]
    if layer_class in _LAZY:
        return _adapted(_LAZY[layer_class], layer_class)
    if not issubclass(layer_class, _ConvNd | _NormBase) or issubclass(layer_class, VendorFreeLayer | LazyModuleMixin):
        return None
    native = next((base for base in layer_class.__mro__ if base in _VENDOR_FREE), None)
    if native is None or _overrides_methods(layer_class, native):
        return _adapted(OwnForward, layer_class)
    return _adapted(_VENDOR_FREE[native], layer_class)


def _overrides_methods(subclass: type[nn.Module], native: type[nn.Module]) -> bool:
    """Return whether a subclass may compute something else than the layer from which it derives."""
    subclasses = subclass.__mro__[: subclass.__mro__.index(native)]
    attributes = {name: value for base in subclasses for name, value in vars(base).items()}
    return any(
        name not in _WITHOUT_EFFECT and (hasattr(native, name) or isinstance(value, property))
        for name, value in attributes.items()
    )


def _adapted(vendor_free: type[nn.Module], subclass: type[nn.Module]) -> type[nn.Module]:
    """Return the class derived from `vendor_free`, whose methods have precedence, and from `subclass`.

    A lazy layer becomes a `vendor_free` one when its first input initializes it.
    """
    for present, original in _ADAPTED.items():
        if original is subclass:
            return present

    def reduce(layer: nn.Module, protocol: int) -> tuple[Any, ...]:
        # pickle cannot import the class by its name.
        return _new_adapted, (vendor_free, subclass), vars(layer).copy()

    attributes: dict[str, Any] = {"__reduce_ex__": reduce}
    if subclass in _LAZY:
        attributes["cls_to_become"] = vendor_free
    adapted = type(f"VendorFree{subclass.__name__}", (vendor_free, subclass), attributes)
    _ADAPTED[adapted] = subclass
    return adapted


def _new_adapted(vendor_free: type[nn.Module], subclass: type[nn.Module]) -> nn.Module:
    adapted = _adapted(vendor_free, subclass)
    return adapted.__new__(adapted)
