"""Scratch memory shared by all calls on a thread, and cached objects that refer to it."""

import threading
from collections.abc import Callable, Hashable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

MOST_PREPARED = 256
"""Largest number of cached objects; a network has a few dozen layer shapes, but images may have many sizes."""

PreparedT = TypeVar("PreparedT")


class Scratch:
    """Named buffers of one dtype and device, each as large as the largest request so far.

    All requests with one name share memory.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._buffers: dict[str, Tensor] = {}
        self._prepared: dict[Hashable, Any] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Return a contiguous tensor with undefined content."""
        size = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            self._prepared.clear()  # cached objects would keep the smaller buffer alive
            with torch.inference_mode(False):  # an inference tensor cannot be written in training
                buffer = torch.empty(size, dtype=self._dtype, device=self._device)
            self._buffers[name] = buffer
        with torch.inference_mode(False):
            return buffer[:size].view(shape)

    def prepared(self, key: Hashable, make: Callable[[], PreparedT]) -> PreparedT:
        """Return the cached result of `make` for this key; a buffer that grows clears the cache."""
        found: PreparedT | None = self._prepared.get(key)
        if found is None:
            with torch.inference_mode(False):
                found = make()
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            self._prepared[key] = found
        return found


_of_thread = threading.local()


def scratch_of(like: Tensor) -> Scratch:
    """Return the scratch memory of this thread for the dtype of `like`.

    The memory is new, not shared, for accelerators, whose streams run asynchronously, and for tensor subclasses.
    """
    if like.device.type != "cpu" or type(like) not in (Tensor, Parameter):
        return Scratch(like.dtype, like.device)
    by_dtype: dict[torch.dtype, Scratch] = _of_thread.__dict__.setdefault("by_dtype", {})
    if like.dtype not in by_dtype:
        by_dtype[like.dtype] = Scratch(like.dtype, like.device)
    return by_dtype[like.dtype]
