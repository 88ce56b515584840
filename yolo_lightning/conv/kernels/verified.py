"""Optional kernels, compiled on first use, verified against a reference, and disabled after a failure.

They are registered as operators of `torch.library`, with a fake implementation for tensors without data.
"""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from yolo_lightning.conv.algorithms.problem import Tensors
from yolo_lightning.conv.algorithms.shared import is_capturing
from yolo_lightning.errors import log_unexpected

# Largest difference between two correct results, relative to the largest value. Sums of 100,000 float32 products in
# different order differ by 5e-5, and by more with cancellation; products in TF32, which the reference may use, differ
# by 1e-3, and the rounding of a half type by up to 4e-3. A wrong address gives more than 0.1.
TOLERANCE = 1e-3
TOLERANCE_TF32 = 1e-2

Pairs = Iterable[tuple[Tensor, Tensor]]
"""Results of kernels, each with the result of the reference."""

NAMESPACE = "yolo_lightning"
# The methods of the class have no annotations.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]

_ACCELERATORS = {"cuda"}
"""Types of the devices that have the kernels. Tests add `meta`, on which the kernels need no compilation."""


def is_accelerator(device_type: str) -> bool:
    """Return whether the GPU kernels support a device type."""
    return device_type in _ACCELERATORS


class BuildError(RuntimeError):
    """The kernels cannot be compiled on this machine."""


class OptionalKernels:
    """Kernels that are disabled until `enable` is called; all models in a process share them.

    Every kernel is verified before its first use, on a small problem with generated values, so that the verification
    needs little memory and does not depend on the data. After a failed build, a wrong result or a failed call the
    kernels are disabled in this process, with one warning.

    Args:
        name: Name in warnings.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._build: Callable[[torch.device], Any] | None = None
        self._kernels: dict[torch.device, Any] = {}
        self._verified: set[tuple[Hashable, torch.device]] = set()
        # The backward pass runs in other threads.
        self._lock = threading.Lock()

    def enable(self, build: Callable[[torch.device], Any]) -> None:
        """Enable the kernels, also after an earlier failure; `build` is called on first use, once per device."""
        with self._lock:
            self._build = build
            self._kernels = {}
            self._verified = set()

    def disable(self) -> None:
        """Disable the kernels. Plans that have selected them use the reference."""
        self._build = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Disable the kernels in the block, and keep those that are compiled and verified."""
        build = self._build
        self._build = None
        try:
            yield
        finally:
            self._build = build

    @property
    def enabled(self) -> bool:
        """Whether the kernels are enabled and have not failed."""
        return self._build is not None

    def available(self, device: torch.device) -> bool:
        """Return whether GPU kernels may be used on this device; compile one if necessary, and warn on failure."""
        if not is_accelerator(device.type):
            return False
        if device.type == "meta":
            return True
        if device.type == "cuda" and not torch.cuda.is_available():
            return False
        if device.type == "cuda" and self.enabled:
            index = torch.cuda.current_device() if device.index is None else device.index
            device = torch.device("cuda", index)
        return self.on(device) is not None

    def on(self, device: torch.device) -> Any:
        """Return the compiled kernels for a device, or None if they are disabled or cannot be compiled."""
        with self._lock:
            build = self._build
            if build is None:
                return None
            if device not in self._kernels:
                try:
                    self._kernels[device] = build(device)
                except BuildError as error:
                    self._disable(f"no build for {device}: {error}")
                    return None
            return self._kernels[device]

    def required(self, device: torch.device) -> Any:
        """Return the compiled kernels for a device; raises `RuntimeError` if there are none."""
        kernels = self.on(device)
        if kernels is None:
            raise RuntimeError(f"{self._name} are disabled or cannot be compiled for {device}")
        return kernels

    def run(
        self, key: Hashable, device: torch.device, compute: Callable[[], Tensors], verify: Callable[[], Pairs]
    ) -> Tensors | None:
        """Return the results of `compute`, or None if the kernels cannot be used.

        Args:
            key: Identifies the kernels and the problem; `verify` is called once per key and device.
            device: Device of the tensors.
            compute: Runs the kernels on the problem.
            verify: Runs the kernels and the reference on a small problem.
        """
        if device.type == "meta" and is_accelerator("meta"):
            return compute()
        if device.type == "meta" or self.on(device) is None:
            return None
        try:
            if (key, device) not in self._verified:
                # A stream under graph capture does not compute, so its results cannot be compared.
                if is_capturing(device):
                    return None
                if not self._matches(key, device, verify()):
                    return None
            return compute()
        except Exception as error:  # a launch may raise any type
            # Out-of-memory is not a failure of the kernels; the caller can divide the batch.
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            log_unexpected(error, RuntimeError, OSError)
            self._disable(f"{key} failed: {error}")
            return None

    def _matches(self, key: Hashable, device: torch.device, pairs: Pairs) -> bool:
        # One transfer. An asynchronous error of a kernel is raised here and cannot be recovered from.
        numbers = []
        for result, expected in pairs:
            numbers.append(torch.stack([expected.abs().max(), (expected - result).abs().max()]))
        values = torch.stack(numbers).tolist()
        if all(difference <= largest * _tolerance(key) for largest, difference in values):
            self._verified.add((key, device))
            return True
        worst = max((difference / largest if largest else float("inf")) for largest, difference in values)
        self._disable(f"{key} on {device} has an error of {worst:.2g} of the largest value")
        return False

    def _disable(self, reason: str) -> None:
        self.disable()
        warnings.warn(f"{self._name} are disabled: {reason}", stacklevel=2)


LAUNCHES: dict[Any, Callable[..., Any]] = {}
"""For each operator the function that launches its kernels: the operator without its choice of a launcher.

With a `LaunchRecorder` and tensors on the meta device, the function reports the launches of the operator and computes
nothing.
"""


def operator(schema: str, fake: Callable[..., Any], kernels: OptionalKernels) -> Callable[[Callable[..., Any]], Any]:
    """Register a function as the implementation of an operator on CPU and GPU and return the operator.

    The first argument of the function is the launcher of the kernels on the device of the first tensor.

    The plain registration is used instead of `torch.library.custom_op`, whose wrapper takes several times as long per
    call. The operators have no derivative formula: callers use them in an `autograd.Function`.

    Args:
        schema: Schema of the operator, without namespace.
        fake: Returns results with the shapes, dtypes and strides of the operator.
        kernels: Kernels that the function launches.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))

        def compute(first: Tensor, *others: Any) -> Any:
            return function(kernels.required(first.device), first, *others)

        for key in ("CPU", "CUDA"):
            _LIBRARY.impl(name, compute, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
        registered = getattr(getattr(torch.ops, NAMESPACE), name).default
        LAUNCHES[registered] = function
        return registered

    return register


def generated(*shape: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Return values in (-1, 1) that look random, without using the state of a random number generator."""
    numbers = torch.arange(torch.Size(shape).numel(), device=device, dtype=torch.float64)
    # The fractional part of multiples of an irrational number is distributed evenly; the sine breaks its regularity.
    values = (numbers * (0.618033988749895 + 0.1 * seed) + (numbers * 0.7548776662466927 + seed).sin() * 7).frac()
    return (values * 2 - values.sign()).to(dtype).view(shape)


def _tolerance(key: Hashable) -> float:
    is_half = isinstance(key, tuple) and any(part in (torch.float16, torch.bfloat16) for part in key)
    try:
        is_exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # torch raises this if TF32 was set for one backend only.
        is_exact = False
    return TOLERANCE if is_exact and not is_half else TOLERANCE_TF32
