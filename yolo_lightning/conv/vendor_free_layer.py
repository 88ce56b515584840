"""Behaviour of vendor-free layers towards tools of PyTorch that know the layers of `torch.nn` by their class."""

from typing import Any, NoReturn

from torch import nn
from torch.fx import Proxy

from yolo_lightning.errors import UserError


class VendorFreeLayer(nn.Module):
    """Base class of all vendor-free layers. A layer is one node of a graph of `torch.fx`, like a layer of `torch.nn`.

    Tools that cannot convert a vendor-free layer raise a `UserError`: `torch.jit.script`, and quantization by
    `torch.ao.quantization`, which would silently keep the layer in float32.
    """

    def _as_node(self, input: Proxy, *arguments: Any, **options: Any) -> Proxy:
        """Return the result of the layer in a graph that `torch.fx.symbolic_trace` records."""
        tracer: Any = input.tracer
        path = tracer.path_of_module(self)
        if not path:
            raise UserError(
                f"torch.fx.symbolic_trace records a network that contains {type(self).__name__}, not the layer alone; "
                "trace torch.nn.Sequential(layer)"
            )
        node: Proxy = tracer.create_proxy("call_module", path, (input, *arguments), options)
        return node

    @property
    def qconfig(self) -> NoReturn:
        """Quantization settings, which `torch.ao.quantization` assigns to all layers of a model. None is accepted."""
        raise AttributeError("qconfig")

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        if value is not None:
            raise UserError(
                f"torch.ao.quantization does not quantize {type(self).__name__}; call unswap_convs(model) before the "
                "model is prepared"
            )

    def __prepare_scriptable__(self) -> NoReturn:
        raise UserError(
            f"torch.jit.script cannot compile {type(self).__name__}; use torch.jit.trace or torch.export, or call "
            "unswap_convs(model) before torch.jit.script"
        )
