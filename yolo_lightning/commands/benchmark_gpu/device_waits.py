"""Stage `waits`: how often a training step waits for the device, and where."""

import sys
import traceback
import warnings
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, make_plan
from yolo_lightning.commands.benchmark_gpu.devices import open_device
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.commands.benchmark_gpu.trainer_steps import TrainerSteps
from yolo_lightning.commands.benchmark_gpu.variant_speed import FULL, QUICK

STEPS, QUICK_STEPS = 8, 2
"""Eight steps contain one optimizer step."""
OWN_FOLDERS = ("yolo_lightning", "callbacks", "ultralytics", "lightning")
MESSAGE = "called a synchronizing CUDA operation"
READING = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"})
"""ATen operators whose result the host needs before it can continue."""


def measure(context: StageContext) -> dict[str, Any]:
    """Return the number of waits per step for our variants, by place in the code."""
    device = open_device(context.device)
    batch_size, image_size = QUICK if context.quick else FULL
    steps = QUICK_STEPS if context.quick else STEPS
    result: dict[str, Any] = {"batch": batch_size, "steps": steps, "variants": {}}
    for variant in (Variant.GEMM_NHWC, Variant.GEMM_COMPILED):
        context.announce(variant.value)
        watch: CudaWaits | ReadingOperators = CudaWaits() if device.type == "cuda" else ReadingOperators()
        result["method"] = watch.method
        work = TrainerSteps(
            variant,
            make_plan(variant, 0.0),
            device,
            batch_size=batch_size,
            image_size=image_size,
            folder=context.out / "work",
        )
        with libraries(variant, device, False):
            work.run(1, 1)
            work.run(steps, watch=watch)
        places = [{"place": place, "per_step": count / steps} for place, count in watch.places.most_common()]
        result["variants"][variant.value] = {"per_step": watch.places.total() / steps, "places": places}
        context.save(result)
    return result | {"passed": True}


class CudaWaits(AbstractContextManager["CudaWaits"]):
    """Counts the warnings of the CUDA or HIP runtime about waits of the host, by place."""

    method = "warnings of torch.cuda.set_sync_debug_mode"

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Self:
        self._caught.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._count
        torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
        self._caught.__exit__(None, None, None)

    def _count(self, message: Warning | str, *_: Any, **__: Any) -> None:
        if MESSAGE in str(message):
            self.places[calling_place()] += 1


class ReadingOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators whose result the host reads, by place; for devices without a debug mode."""

    method = "operators that the host waits for (no debug mode on this device)"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        moves = name == "_to_copy" and args[0].device.type != torch.device((kwargs or {}).get("device", "cpu")).type
        if name in READING or (moves and not (kwargs or {}).get("non_blocking")):
            self.places[f"{calling_place()}: {name}"] += 1
        return function(*args, **(kwargs or {}))


def calling_place() -> str:
    """Return the innermost line of this package, Ultralytics or Lightning that is being executed, outside this file."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        parts = frame.filename.replace("\\", "/").split("/")
        own = [at for at, part in enumerate(parts) if part in OWN_FOLDERS]
        if own and parts[-1] != "device_waits.py":
            return f"{'/'.join(parts[own[-1] :])}:{frame.lineno} in {frame.name}"
    return "unknown place"
