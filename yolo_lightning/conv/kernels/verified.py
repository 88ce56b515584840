"""Optional kernels, compiled on first use, verified against a reference, and disabled after a failure."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Problem, Tensors
from yolo_lightning.conv.algorithms.shared import have_data, is_capturing

# Largest difference between two correct results, relative to the largest value. Sums of 100,000 float32 products in
# different order differ by 5e-5, and by more with cancellation; products in TF32, which the reference may use, differ
# by 1e-3. A wrong address gives more than 0.1.
TOLERANCE = 1e-3
TOLERANCE_TF32 = 1e-2


class BuildError(RuntimeError):
    """The kernels cannot be compiled on this machine."""


class OptionalKernels:
    """Kernels that are disabled until `enable` is called; all models in a process share them.

    The first result for every problem is compared with that of the reference. After a wrong result or a failed call the
    kernels are disabled in this process, and the reference computes their problems.

    `launches` is a module with a function for each supported `table.Operation`, which takes the compiled kernels as
    first argument; `reference` is a module with functions of the same names and results, without this argument.
    """

    def __init__(self, name: str, launches: Any, reference: Any) -> None:
        self._name, self._launches, self._reference = name, launches, reference
        self._build: Callable[[torch.device], Any] | None = None
        self._kernels: dict[torch.device, Any] = {}
        self._checked: set[tuple[str, Problem, torch.device]] = set()
        # The backward pass runs in other threads.
        self._lock = threading.Lock()

    def enable(self, build: Callable[[torch.device], Any]) -> None:
        """Enable the kernels, also after an earlier failure; `build` is called on first use, once per device."""
        with self._lock:
            self._build, self._kernels, self._checked = build, {}, set()

    def disable(self) -> None:
        """Disable the kernels. Plans that have selected them use the reference."""
        self._build = None

    @property
    def enabled(self) -> bool:
        """Whether the kernels are enabled and have not failed."""
        return self._build is not None

    def work_on(self, device: torch.device) -> bool:
        """Return whether the kernels are enabled and work on this device; compile them if necessary."""
        return self._kernels_for(device) is not None

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self._compute("forward", (input, weight), problem)[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        return self._compute("input_gradient", (grad_output, weight), problem)[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        return self._compute("weight_gradient", (input, grad_output), problem)[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the input gradient and the weight gradient."""
        grad_input, grad_weight = self._compute("gradients", (input, grad_output, weight), problem)
        return grad_input, grad_weight

    def _compute(self, name: str, operands: Tensors, problem: Problem) -> Tensors:
        """Compute a product with the kernels if possible, else with the reference."""
        key = name, problem, operands[0].device
        kernels = self._kernels_for(operands[0].device) if have_data(operands) else None
        is_checked = key in self._checked

        def expected() -> Tensors:
            return _tuple(getattr(self._reference, name)(*operands, problem))

        # A stream under graph capture does not compute, so its results cannot be compared.
        if kernels is None or (not is_checked and is_capturing(operands[0].device)):
            return expected()
        try:
            found = _tuple(getattr(self._launches, name)(kernels, *operands, problem))
        except Exception as error:  # the launch uses a private interface of torch, which may raise any type
            # Out-of-memory is not a failure of the kernels; the plan falls back to another candidate.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            self._disable(f"{name} failed for {problem}: {error}")
            return expected()
        return found if is_checked else self._check(key, found, expected())

    def _check(self, key: tuple[str, Problem, torch.device], found: Tensors, expected: Tensors) -> Tensors:
        """Return the results to use. Results without a finite, non-zero maximum cannot verify the kernels."""
        # One transfer. An asynchronous error of a kernel is raised here and cannot be recovered from.
        numbers = [(one.abs().max(), (other - one).abs().max()) for one, other in zip(expected, found, strict=True)]
        pairs = torch.stack([torch.stack(pair) for pair in numbers]).tolist()
        if not all(0 < largest < float("inf") for largest, _ in pairs):
            return expected
        worst = max(difference / largest for largest, difference in pairs)
        if all(difference <= largest * _tolerance() for largest, difference in pairs):
            self._checked.add(key)
            return found
        name, problem, device = key
        self._disable(f"{name} on {device} has an error of {worst:.2g} of the largest value for {problem}")
        return expected

    def _disable(self, reason: str) -> None:
        self.disable()
        warnings.warn(f"{self._name} are disabled: {reason}", stacklevel=2)

    def _kernels_for(self, device: torch.device) -> Any:
        """Return the compiled kernels, or None if they are disabled or cannot be compiled."""
        with self._lock:
            build = self._build
            if build is None:
                return None
            if device not in self._kernels:
                try:
                    self._kernels[device] = build(device)
                except BuildError as error:
                    self._kernels[device] = None
                    warnings.warn(f"no {self._name} on {device}: {error}", stacklevel=2)
            return self._kernels[device]


def _tuple(result: Tensor | Tensors) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def _tolerance() -> float:
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # torch raises this if TF32 was set for one backend only.
        is_exact = False
    return TOLERANCE if is_exact else TOLERANCE_TF32
