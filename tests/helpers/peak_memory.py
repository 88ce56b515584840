"""Largest memory of the tensors that a computation creates, on any device, also on the meta device."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Tracks the storages that operators allocate; memory inside an operator is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def ignore(self, *tensors: Tensor) -> None:
        """Do not count these tensors and their views."""
        self._known.update(tensor.untyped_storage()._cdata for tensor in tensors)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operator(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._known:
            return
        self._known.add(identity)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, identity, size)

    def _free(self, identity: int, size: int) -> None:
        self._known.discard(identity)
        self.live -= size
