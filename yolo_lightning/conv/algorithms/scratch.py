"""Scratch memory that all calls on a thread share, and what they have prepared on it."""

import threading
from collections.abc import Callable, Hashable
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

MOST_PREPARED = 256
"""So many prepared objects are kept; a network has a few dozen layer shapes, but images may have many sizes."""

PreparedT = TypeVar("PreparedT")


class Scratch:
    """Buffers by name, each as large as its largest use so far, of one dtype on one device.

    Two uses of a name must not overlap in time.

    Args:
        dtype: Of all buffers.
        device: Of all buffers.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._buffers: dict[str, Tensor] = {}
        self._prepared: dict[Hashable, Any] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor whose content is whatever the last user left."""
        size = prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            self._prepared.clear()  # what was prepared would keep the smaller buffer alive
            with torch.inference_mode(False):  # an inference tensor could not be written to in training
                buffer = torch.empty(size, dtype=self._dtype, device=self._device)
            self._buffers[name] = buffer
        with torch.inference_mode(False):
            return buffer[:size].view(shape)

    def prepared(self, key: Hashable, make: Callable[[], PreparedT]) -> PreparedT:
        """What `make` gave for this key, for as long as the buffers last."""
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
    """The scratch memory of this thread for tensors such as `like`.

    Accelerators, with their streams, get a new one, and so do tensors that only pretend to hold numbers.
    """
    if like.device.type != "cpu" or type(like) not in (Tensor, Parameter):
        return Scratch(like.dtype, like.device)
    by_dtype: dict[torch.dtype, Scratch] = _of_thread.__dict__.setdefault("by_dtype", {})
    if like.dtype not in by_dtype:
        by_dtype[like.dtype] = Scratch(like.dtype, like.device)
    return by_dtype[like.dtype]
