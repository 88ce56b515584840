"""Callback that makes an operator of torch hang, fail, or return wrong values, whatever code calls the operator."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from faults.hangs import record_fired

ERRORS: dict[str, Exception] = {
    "device error": getattr(torch, "AcceleratorError", RuntimeError)("HIP error: unspecified launch failure"),
    "error of a library": RuntimeError("miopenStatusUnknownError"),
    "error without a cause": RuntimeError("the operator has failed"),
    "out of memory": torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
    "no memory of the host": MemoryError(),
    "a bug": TypeError("unsupported operand type(s) for +: 'int' and 'NoneType'"),
}
FACTORS = {"NaN": float("nan"), "wrong": 1.5}
EFFECTS = ("hang", *ERRORS, *FACTORS)


class FaultyOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Spoils the call number `call` of an operator whose name contains `name`, or every call from this one on."""

    def __init__(self, effect: str, name: str, call: int, folder: Path, *, persists: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.effect = effect
        self.name = name
        self.call = call
        self.persists = persists
        self.folder = folder
        self.calls = 0
        self.marker = folder / "operator"
        self.fired = self.marker.exists()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.name not in str(function):
            return result
        self.calls += 1
        if self.fired:
            return self.spoiled(result) if self.persists else result
        if self.calls <= self.call:
            return result
        self.fired = True
        self.marker.touch()
        record_fired(self.folder, f"{self.effect} in {function}")
        return self.spoiled(result)

    def spoiled(self, result: Any) -> Any:
        """Return the result of a faulty call, or never."""
        if self.effect == "hang":
            while True:
                time.sleep(1000)
        if self.effect in ERRORS:
            raise ERRORS[self.effect]
        factor = FACTORS[self.effect]
        return tree_map_only(
            torch.Tensor, lambda tensor: tensor.mul_(factor) if tensor.is_floating_point() else tensor, result
        )


class OperatorFault(Callback):
    """Enables `FaultyOperators` from the first step of each attempt to its end.

    Args:
        effect: One of `EFFECTS`.
        name: Part of the name of the operator; an empty text selects any operator.
        step: Global step before which nothing happens.
        call: Number of calls of the operator before the fault.
        folder: Folder of the case, which records that the fault has happened.
        persists: Whether every later call of the operator has the fault, in later attempts, too.
    """

    def __init__(self, effect: str, name: str, step: int, call: int, folder: str, persists: bool) -> None:
        self.step = step
        self.mode = FaultyOperators(effect, name, call, Path(folder), persists=persists)
        self.entered = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        if not self.entered and step >= self.step:
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self.entered = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.entered:
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.entered = False
