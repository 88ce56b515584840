"""Optional kernels, compiled on first use, verified against a reference, and disabled after a failure."""

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from yolo_lightning.conv.algorithms.problem import Problem, Tensors

# Largest difference between two correct results, relative to the largest value. Sums of 100,000 float32 products in
# different order differ by 5e-5, and by more with cancellation; products in TF32, which the reference may use, differ
# by 1e-3. A wrong address gives more than 0.1.
TOLERANCE = 1e-3
TOLERANCE_TF32 = 1e-2

KernelsT = TypeVar("KernelsT")


class BuildError(RuntimeError):
    """The kernels cannot be compiled on this machine."""


@dataclass(frozen=True)
class Product(Generic[KernelsT]):
    """One product of a convolution.

    Attributes:
        name: Name of the product, a value of `table.Operation`.
        compute: Computes the product with the kernels.
        reference: Computes the product with PyTorch operations.
    """

    name: str
    compute: Callable[[KernelsT, Tensors, Problem], Tensors]
    reference: Callable[[Tensors, Problem], Tensors]


class CheckedKernels(Generic[KernelsT]):
    """Compiled kernels of this process and the problems for which they have been verified.

    The first result for every problem is compared with that of the reference. After a wrong result or a failed call the
    kernels are disabled in this process, and the reference computes their problems.

    Args:
        name: Name of the kernels in warnings.
        build: Compiles the kernels for a device; called once per device, on first use.
    """

    def __init__(self, name: str, build: Callable[[torch.device], KernelsT]) -> None:
        self._name = name
        self._build = build
        self._kernels: dict[torch.device, KernelsT | None] = {}
        self._checked: set[tuple[str, Problem, torch.device]] = set()
        self._is_disabled = False
        # The backward pass runs in other threads.
        self._lock = threading.Lock()

    def works_on(self, device: torch.device) -> bool:
        """Return whether the kernels are compiled and have not failed; compile them if necessary."""
        return self._kernels_for(device) is not None

    def compute(self, product: Product[KernelsT], operands: Tensors, problem: Problem) -> Tensors:
        """Compute a product with the kernels if possible, else with the reference."""
        key = product.name, problem, operands[0].device
        kernels = self._kernels_for(operands[0].device) if _have_data(*operands) else None
        is_checked = key in self._checked
        if kernels is None or not (is_checked or _can_be_compared(operands[0].device)):
            return product.reference(operands, problem)
        try:
            found = product.compute(kernels, operands, problem)
        except Exception as error:  # the launch uses a private interface of torch, which may raise any type
            # Out-of-memory is not a failure of the kernels; the plan falls back to another candidate.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            self._disable(f"{product.name} failed for {problem}: {error}")
            return product.reference(operands, problem)
        return found if is_checked else self._check(key, found, product.reference(operands, problem))

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
        self._is_disabled = True
        warnings.warn(f"{self._name} are disabled: {reason}", stacklevel=2)

    def _kernels_for(self, device: torch.device) -> KernelsT | None:
        with self._lock:
            if self._is_disabled:
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
    """Verified kernels that are disabled until `enable` is called; all models in a process share them.

    Args:
        name: Name of the kernels in warnings.
        products: Products that the kernels compute.
    """

    def __init__(self, name: str, products: Sequence[Product[KernelsT]]) -> None:
        self._name = name
        self._products = {product.name: product for product in products}
        self._kernels: CheckedKernels[KernelsT] | None = None

    def enable(self, build: Callable[[torch.device], KernelsT]) -> None:
        """Enable the kernels, also after an earlier failure, without compiling them yet."""
        self._kernels = CheckedKernels(self._name, build)

    def disable(self) -> None:
        """Disable the kernels. Plans that have selected them use the reference."""
        self._kernels = None

    @property
    def enabled(self) -> bool:
        """Whether the kernels are enabled."""
        return self._kernels is not None

    def work_on(self, device: torch.device) -> bool:
        """Return whether the kernels are enabled and work on this device; compile them if necessary."""
        return self._kernels is not None and self._kernels.works_on(device)

    def forward(self, input: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """Return the output, `problem.output_size`."""
        return self._compute("forward", (input, weight), problem)[0]

    def input_gradient(self, grad_output: Tensor, weight: Tensor, problem: Problem) -> Tensor:
        """Return the input gradient, `problem.input_size`."""
        return self._compute("input_gradient", (grad_output, weight), problem)[0]

    def weight_gradient(self, input: Tensor, grad_output: Tensor, problem: Problem) -> Tensor:
        """Return the weight gradient, `problem.weight_size`."""
        return self._compute("weight_gradient", (input, grad_output), problem)[0]

    def gradients(self, input: Tensor, grad_output: Tensor, weight: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the input gradient and the weight gradient."""
        grad_input, grad_weight = self._compute("gradients", (input, grad_output, weight), problem)
        return grad_input, grad_weight

    def _compute(self, name: str, operands: Tensors, problem: Problem) -> Tensors:
        product = self._products[name]
        if self._kernels is None:
            return product.reference(operands, problem)
        return self._kernels.compute(product, operands, problem)


def product_of(name: str, kernels: ModuleType, reference: ModuleType) -> Product[Any]:
    """Return the product of the functions called `name` in two modules; that of `kernels` takes the kernels first."""
    by_kernels, by_reference = getattr(kernels, name), getattr(reference, name)
    return Product(
        name,
        lambda found, operands, problem: _tuple(by_kernels(found, *operands, problem)),
        lambda operands, problem: _tuple(by_reference(*operands, problem)),
    )


def _tuple(result: Tensor | Tensors) -> Tensors:
    return result if isinstance(result, tuple) else (result,)


def _have_data(*tensors: Tensor) -> bool:
    """Return whether the tensors have data in memory, which excludes subclasses and tracing."""
    return (
        all(type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and not torch.compiler.is_compiling()
    )


def _can_be_compared(device: torch.device) -> bool:
    # A stream under graph capture does not compute.
    return not (device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def _tolerance() -> float:
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # torch raises this if TF32 was set for one backend only.
        is_exact = False
    return TOLERANCE if is_exact else TOLERANCE_TF32
