"""The meta device as an accelerator without data: what a program asks of it, and how much memory is alive.

Operators of the meta device compute shapes only, so that a training step of a full-size network takes a second.
"""

import sys
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from yolo_lightning.conv.kernels.launcher import LaunchRecorder
from yolo_lightning.conv.kernels.verified import LAUNCHES
from yolo_lightning.utils.activity import Activity, current

META = torch.device("meta")
PACKAGES = ("yolo_lightning", "ultralytics", "lightning", "torchmetrics")
"""The innermost frame of one of these packages names the origin of an event; so does `torch/optim`."""
VIEWS = frozenset(
    [
        "view",
        "expand",
        "permute",
        "transpose",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "t",
        "as_strided",
        "detach",
        "alias",
        "unfold",
        "split",
        "_unsafe_view",
        "empty",
        "new_empty",
        "empty_like",
        "split_with_sizes",
        "lift_fresh",
        "unbind",
        "_reshape_alias",
        "empty_strided",
        "new_empty_strided",
        "diagonal",
        "chunk",
        "view_as_real",
        "resize_",
        "set_",
    ]
)
"""Operators that launch no kernel."""


class MetaAccelerator(Accelerator):
    """Lets Lightning's Trainer train on the meta device."""

    def setup_device(self, device: torch.device) -> None:
        assert device == META

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [META]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "meta"


@dataclass
class Requests:
    """What a program asked of the device."""

    waits: Counter[str] = field(default_factory=Counter)  # "operator in file:function", the host waits for the device
    uploads: Counter[str] = field(default_factory=Counter)  # blocking copies to the device, named alike
    queued_uploads: int = 0  # copies to the device that do not block
    unreported: Counter[str] = field(default_factory=Counter)  # waits and blocking copies outside of `DEVICE_WAIT`
    kernels: Counter[str] = field(default_factory=Counter)  # operators that are no views


class MetaDevice(TorchDispatchMode):
    """Records requests and live memory of the meta device, and answers operators that depend on data.

    Such an operator makes the host wait for a real device. Its answer is `rows` rows (`nonzero`, a mask as an index),
    one row per image (`unique` of the sample indices), or `number` (`item`; True for a condition).

    Memory is the sum of the bytes of all live storages. The scratch memory of this package's own kernels is
    contained; the workspace inside an operator of PyTorch, rounding and fragmentation of an allocator are not.
    """

    def __init__(self, images: int, number: int = 8, rows: int = 4096) -> None:
        super().__init__()
        self.images, self.number, self.rows = images, number, rows
        self.requests = Requests()
        self.live_bytes = self.peak_bytes = 0
        self._storages: dict[int, Any] = {}

    def start(self) -> None:
        """Forget the requests and the peak so far."""
        self.requests, self.peak_bytes = Requests(), self.live_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        on_device = any(tensor.device == META for tensor in tensors)
        if func in LAUNCHES and on_device:
            return self._launch(func, args)
        result = self._answer(name, func, args, kwargs) if on_device else func(*args, **kwargs)
        results = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        if not on_device and not any(tensor.device == META for tensor in results):
            return result
        if name not in VIEWS:
            self.requests.kernels[name] += 1
        # A host tensor without dimensions is an argument of a kernel, not a copy.
        from_host = [
            tensor for tensor in tensors if tensor.device != META and (tensor.ndim or name in ("_to_copy", "copy_"))
        ]
        if (name == "lift_fresh" and on_device) or (from_host and any(tensor.device == META for tensor in results)):
            if kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
                self.requests.queued_uploads += 1
            else:
                self._count(self.requests.uploads, name)
        for tensor in (*tensors, *results):
            if tensor.device == META:
                self._track(tensor)
        return result

    def _launch(self, func: Any, args: Any) -> Any:
        """Run the function that launches the kernels of an operator, whose scratch memory counts as live meanwhile."""
        recorder = LaunchRecorder()
        with self:
            result = LAUNCHES[func](recorder, *args)
        self.requests.kernels.update(launch.name for launch in recorder.launches)
        return result

    def _answer(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        if name == "_local_scalar_dense":
            self._wait(name)
            return True if args[0].dtype == torch.bool else self.number if not args[0].is_floating_point() else 1.0
        if name == "nonzero":
            self._wait(name)
            return torch.empty(self.rows, args[0].ndim, dtype=torch.int64, device=META)
        if name == "_unique2":
            self._wait(name)
            whole = torch.empty(args[0].shape, dtype=torch.int64, device=META)
            return args[0].new_empty(self.images), whole, whole.new_empty(self.images)
        if name in ("index", "index_put_", "index_put") and any(is_mask(index) for index in args[1]):
            self._wait(f"{name} with a mask")
            indices = [index for mask in args[1] for index in self._indices(mask)]
            return func(args[0], indices, *args[2:], **kwargs)
        target = kwargs.get("device")
        if name == "_to_copy" and target is not None and target != META and args[0].device == META:
            self._wait("copy to the host")
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype, device=target)
        if name == "copy_" and args[0].device != META:
            self._wait("copy to the host")
            return args[0]
        return func(*args, **kwargs)

    def _indices(self, mask: Any) -> list[Any]:
        if not is_mask(mask):
            return [mask]
        return [torch.empty(self.rows, dtype=torch.int64, device=META) for _ in range(mask.ndim)]

    def _wait(self, name: str) -> None:
        self._count(self.requests.waits, name.removeprefix("_"))

    def _count(self, requests: Counter[str], name: str) -> None:
        request = f"{name} in {origin()}"
        requests[request] += 1
        if current() is not Activity.DEVICE_WAIT:
            self.requests.unreported[f"{request}, activity {current().label}"] += 1

    def _track(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = storage.nbytes()

        def freed(reference: Any) -> None:
            if key in self._storages and self._storages[key] is reference:
                del self._storages[key]
                self.live_bytes -= size

        self._storages[key] = weakref.ref(storage, freed)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def origin() -> str:
    """Return `file:function` of the innermost frame of a package in `PACKAGES`, `backward` if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if any(package in path.parts for package in PACKAGES) or ("torch" in path.parts and "optim" in path.parts):
            package = next((candidate for candidate in (*PACKAGES, "torch") if candidate in path.parts), "")
            name = "/".join(path.parts[path.parts.index(package) :])
            return f"{name}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return "backward"
