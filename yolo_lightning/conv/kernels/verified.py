"""Kernels of our own that nobody trusts: built at first use, compared with an algorithm, dropped where they fail."""

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from yolo_lightning.conv.algorithms.problem import Problem, Tensors

# Largest difference between two right results, as a share of the largest value. Sums of 100 000 float32 products in
# another order differ by 5e-5, and by more where they cancel; products in TF32, which the other algorithm may use, by
# 1e-3. A wrong address shows as more than 0.1.
LARGEST_DIFFERENCE = 1e-3
LARGEST_DIFFERENCE_TF32 = 1e-2

KernelsT = TypeVar("KernelsT")


class BuildError(RuntimeError):
    """The kernels cannot be built here; the message says why."""


@dataclass(frozen=True)
class Product(Generic[KernelsT]):
    """One product of a convolution.

    Attributes:
        name: Of a function that computes it, as in `_algorithms`.
        compute: By the kernels, from the operands and the problem.
        reference: The same by an algorithm that is trusted.
    """

    name: str
    compute: Callable[[KernelsT, Tensors, Problem], Tensors]
    reference: Callable[[Tensors, Problem], Tensors]


class CheckedKernels(Generic[KernelsT]):
    """The kernels of one process, once they were built, and what is known about them.

    The first result for every problem is compared with that of the reference; after one that differs, or a call that
    fails, the kernels are not used any more in this process and the reference computes what was meant for them.

    Args:
        name: For warnings.
        build: Makes the kernels for a device; called once for each, at first use.
    """

    def __init__(self, name: str, build: Callable[[torch.device], KernelsT]) -> None:
        self._name = name
        self._build = build
        self._kernels: dict[torch.device, KernelsT | None] = {}
        self._checked: set[tuple[str, Problem, torch.device]] = set()
        self._is_struck = False
        # Backward runs in threads of its own.
        self._lock = threading.Lock()

    def works_on(self, device: torch.device) -> bool:
        """Whether the kernels were or can be built, and have not failed. Builds them; warns once if that fails."""
        return self._kernels_for(device) is not None

    def compute(self, product: Product[KernelsT], operands: Tensors, problem: Problem) -> Tensors:
        """The results of a product, by the kernels where they can."""
        key = product.name, problem, operands[0].device
        kernels = self._kernels_for(operands[0].device) if _have_addresses(*operands) else None
        is_checked = key in self._checked
        if kernels is None or not (is_checked or _can_be_compared(operands[0].device)):
            return product.reference(operands, problem)
        try:
            found = product.compute(kernels, operands, problem)
        except Exception as error:  # a private interface of torch may say anything
            # What follows a lack of memory is for the caller to decide; the kernels are not to blame.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            self._strike(f"{product.name} failed for {problem}: {error}")
            return product.reference(operands, problem)
        return found if is_checked else self._check(key, found, product.reference(operands, problem))

    def _check(self, key: tuple[str, Problem, torch.device], found: Tensors, expected: Tensors) -> Tensors:
        """The results to use. A comparison with zeros, infinities or NaN says nothing, and is done again next time."""
        # One transfer; a kernel that failed while it ran is reported here, as a RuntimeError that nothing can mend.
        numbers = [(one.abs().max(), (other - one).abs().max()) for one, other in zip(expected, found, strict=True)]
        pairs = torch.stack([torch.stack(pair) for pair in numbers]).tolist()
        if not all(0 < largest < float("inf") for largest, _ in pairs):
            return expected
        worst = max(difference / largest for largest, difference in pairs)
        if all(difference <= largest * _tolerance() for largest, difference in pairs):
            self._checked.add(key)
            return found
        name, problem, device = key
        self._strike(f"{name} on {device} is off by {worst:.2g} of the largest value for {problem}")
        return expected

    def _strike(self, reason: str) -> None:
        self._is_struck = True
        warnings.warn(f"the {self._name} are not used any more: {reason}", stacklevel=2)

    def _kernels_for(self, device: torch.device) -> KernelsT | None:
        with self._lock:
            if self._is_struck:
                return None
            if device not in self._kernels:
                self._kernels[device] = self._built(device)
            return self._kernels[device]

    def _built(self, device: torch.device) -> KernelsT | None:
        try:
            return self._build(device)
        except BuildError as error:
            warnings.warn(f"no {self._name} on {device}: {error}", stacklevel=2)
            return None


class OptionalKernels(Generic[KernelsT]):
    """Checked kernels that are off until `enable` is called, for the process: all models in it share them.

    Args:
        name: For warnings.
        products: What they compute.
    """

    def __init__(self, name: str, products: Sequence[Product[KernelsT]]) -> None:
        self._name = name
        self._products = {product.name: product for product in products}
        self._kernels: CheckedKernels[KernelsT] | None = None

    def enable(self, build: Callable[[torch.device], KernelsT]) -> None:
        """Let them be used from here on, also after earlier ones failed; does not build them yet."""
        self._kernels = CheckedKernels(self._name, build)

    def disable(self) -> None:
        """Undo `enable`. Problems that were given to them are computed by the reference."""
        self._kernels = None

    @property
    def enabled(self) -> bool:
        """Whether they may be used."""
        return self._kernels is not None

    def work_on(self, device: torch.device) -> bool:
        """Whether they are enabled and run on this device; builds them, and warns once if that fails."""
        return self._kernels is not None and self._kernels.works_on(device)

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The output, `problem.output_size`."""
        return self._compute("forward", (input, weight), problem)[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """The gradient for the input, `problem.input_size`."""
        return self._compute("input_gradient", (grad_output, weight), problem)[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        """The gradient for the weight, `problem.weight_size`."""
        return self._compute("weight_gradient", (input, grad_output), problem)[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """The gradients for the input and for the weight."""
        grad_input, grad_weight = self._compute("gradients", (input, grad_output, weight), problem)
        return grad_input, grad_weight

    def _compute(self, name: str, operands: Tensors, problem: Problem) -> Tensors:
        product = self._products[name]
        if self._kernels is None:
            return product.reference(operands, problem)
        return self._kernels.compute(product, operands, problem)


def product_of(name: str, kernels: ModuleType, reference: ModuleType) -> Product[Any]:
    """The product that two modules compute by functions of this name; the kernels' takes them as first argument."""
    by_kernels, by_reference = getattr(kernels, name), getattr(reference, name)
    return Product(
        name,
        lambda found, operands, problem: _tuple(by_kernels(found, *operands, problem)),
        lambda operands, problem: _tuple(by_reference(*operands, problem)),
    )


def _tuple(result: Tensor | Tensors) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def _have_addresses(*tensors: Tensor) -> bool:
    """Whether the tensors are numbers in memory, and not symbols in a graph that is being recorded."""
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.compiler.is_compiling()
    )


def _can_be_compared(device: torch.device) -> bool:
    # A stream that is being captured computes nothing yet.
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def _tolerance() -> float:
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # What torch says where TF32 was set for one backend alone.
        is_exact = False
    return LARGEST_DIFFERENCE if is_exact else LARGEST_DIFFERENCE_TF32
