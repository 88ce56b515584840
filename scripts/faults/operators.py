"""Callback that makes an operator of torch hang, fail, or return wrong values, whatever code calls the operator."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from faults.hangs import record_fired

ERRORS: dict[str, Exception] = {
    "device error": getattr(torch, "AcceleratorError", RuntimeError)("HIP error: unspecified launch failure"),
    "error of a library": RuntimeError("miopenStatusUnknownError"),
    "error without a cause": RuntimeError("the operator has failed"),
    "out of memory": torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
    "a bug": TypeError("unsupported operand type(s) for +: 'int' and 'NoneType'"),
}
FACTORS = {"NaN": float("nan"), "wrong": 1.5}


class FaultyOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Spoils the call number `call` of an operator whose name contains `name` and which returns tensors of `dtype`.

    `attempts` is the number of attempts of the run in which all later calls are spoiled, too; 0 for a single call. Each
    attempt with a spoiled call adds a line to the file `record`.
    """

    def __init__(self, effect: str, name: str, call: int, attempts: int, record: Path, dtype: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.effect = effect
        self.name = name
        self.dtypes = {getattr(torch, dtype)} if dtype else set()
        self.call = call
        self.is_single = attempts == 0
        self.record = record
        self.calls = 0
        spoiled_attempts = len(record.read_text().splitlines()) if record.exists() else 0
        self.is_over = spoiled_attempts >= max(1, attempts)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self.is_over or self.name not in str(function) or not self.has_dtype(result):
            return result
        self.calls += 1
        if self.calls <= self.call:
            return result
        if self.calls == self.call + 1:
            with self.record.open("a") as file:
                file.write(f"{function}\n")
            record_fired(self.record.parent, f"{self.effect} in {function}")
        self.is_over = self.is_single
        return self.spoiled(result)

    def has_dtype(self, result: Any) -> bool:
        dtypes = {value.dtype for value in tree_leaves(result) if isinstance(value, torch.Tensor)}
        return self.dtypes <= dtypes

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
    """Enables `FaultyOperators` from a step of each attempt to its end.

    Args:
        effect: `hang`, or a key of `ERRORS` or `FACTORS`.
        folder: Folder of the case, which records that the fault has happened.
        name: Part of the name of the operator; an empty text selects any operator.
        dtype: Name of a dtype, such as `bfloat16`, that a tensor in the result must have; an empty text selects any.
        step: Global step before which nothing happens.
        call: Number of calls of the operator from this step on before the fault.
        attempts: Number of attempts in which every later call of the operator has the fault, too; 0 for a single call.
        begin: Name of a file in `folder` before whose creation nothing happens; empty for no such file.
    """

    def __init__(
        self,
        effect: str,
        folder: str,
        name: str = "",
        dtype: str = "",
        step: int = 0,
        call: int = 0,
        attempts: int = 0,
        begin: str = "",
    ) -> None:
        self.step = step
        self.begin = Path(folder) / begin
        record = Path(folder) / f"{effect} in {name or 'any operator'}, call {call} after step {step} {begin}".strip()
        self.mode = FaultyOperators(effect, name, call, attempts, record, dtype)
        self.is_entered = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        is_due = step >= self.step and self.begin.exists() and not self.mode.is_over
        if is_due and not self.is_entered:
            self.mode.__enter__()  # type: ignore[no-untyped-call]
            self.is_entered = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_entered:
            self.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.is_entered = False
