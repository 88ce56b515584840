"""Self-check: convolutions are computed again by PyTorch's plain operators and compared, one layer in a step.

A vendor library or a GPU kernel can begin to return wrong results after hours, without an error. The check only reads:
a training with it equals one without it, bit for bit.
"""

import math
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory, synchronize
from yolo_lightning.utils.files import write_json
from yolo_lightning.utils.run_files import CHECKPOINTS
from yolo_lightning.utils.suspect_checkpoints import (
    SelfCheckRecord,
    read_self_check,
    record_file,
    remove_other_ranks,
)

ROUNDOFF = {torch.float64: 2.0**-24, torch.float32: 2.0**-11, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Largest relative error of a rounding in a convolution of this dtype.

A GPU may round the factors of float32 to TF32, which has the precision of float16. For float64 the value is that of
float32: algorithms such as Winograd's enlarge the errors of float64, and wrong results are larger than either.
"""

PARTS = 64
"""Largest number of parts of a sum, besides the images, that are added in the dtype of the result (split-K)."""

SAFETY = 8.0
"""Limit of the error of a sum, in units of `roundoff * sqrt(terms)`.

Rounding errors of a sum are independent of each other: their standard deviation is at most `roundoff * sqrt(terms / 3)`
of the result. Among a million results, the largest error is five times that.
"""


class WrongResultError(RuntimeError):
    """A layer has computed wrong results twice in succession."""


@dataclass
class CheckedCall:
    """Tensors of one call of a layer; the layer and `input` are those of the forward pass."""

    input: Tensor  # `(N, C, H, W)`
    dtype: torch.dtype  # of the computation, which can differ from that of input and weight under autocast
    output_error: Tensor  # 0-d
    gradients: dict[str, Tensor | None]  # by the name of `output`, `input`, `weight`, if needed; None until computed

    @property
    def is_complete(self) -> bool:
        return all(gradient is not None for gradient in self.gradients.values())


class SelfCheck:
    """Checks one convolution of a step: output, gradient of the input and gradient of the weight.

    Call `begin` before the forward pass, `finish` after the backward pass, and `end` after the last step. Hooks exist
    in checked steps only. The layers take turns. In the first round, each step is checked. Afterwards a step is checked
    while the checks have taken less than `share` of the time since the first round, so that a check is rarer where it
    is slow. No random generator is used. Of a batch in parts, the first part is checked.

    A check that fails is repeated in the next step, with the same layer. If the repeated check fails too, the layer is
    recorded as wrong. The step of the last passed check of each layer is stored in the run folder and continues after a
    restart: see `suspect_checkpoints`.

    Args:
        share: Share of the training time for checks, >= 0 and <= 1; 0 disables them, 1 checks every step.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._layers: dict[str, nn.Conv2d] = {}
        self._turns: deque[str] = deque()  # names of the layers, next one first
        self._unseen: set[str] = set()  # layers without a turn since `prepare`
        self._unused: list[str] = []
        self._record = SelfCheckRecord()
        self._file = Path()
        self._step = 0
        self._name = ""  # layer that is checked in this step; empty in a step without a check
        self._failure = ""  # description of a failed check that has not been repeated yet
        self._is_without_memory = False
        self._call: CheckedCall | None = None
        self._handles: list[RemovableHandle] = []
        self._started_s = 0.0
        self._spent_s = 0.0

    def prepare(self, graph: nn.Module, run: Path, *, steps: int = 0, rank: int = 0, ranks: int = 1) -> None:
        """Find the convolutions of a graph, and read the record of the earlier steps.

        Args:
            graph: The network.
            run: Run folder for the record. Without checkpoints in the folder, nothing is written.
            steps: Number of steps trained so far.
            rank: Rank of this process; each rank checks its own device.
            ranks: Number of ranks.
        """
        self._layers = {name: layer for name, layer in graph.named_modules() if _is_supported(layer)}
        self._file = record_file(run, rank)
        if rank == 0:
            remove_other_ranks(run, ranks)
        self._record = read_self_check(self._file).up_to(steps, self._layers)
        oldest_first = sorted(self._layers, key=self._record.passed.__getitem__)
        self._turns = deque(oldest_first if self.share else [])
        self._unseen = set(self._turns)
        self._unused = []
        self._failure = ""
        self._started_s = time.monotonic()
        self._spent_s = 0.0

    @property
    def is_checking(self) -> bool:
        """Whether the current step is checked, which needs a forward pass with hooks."""
        return bool(self._name)

    def begin(self, step: int) -> None:
        """Select the layer of `step`, which counts from 1, if the step is to be checked."""
        self._discard()
        is_affordable = self._spent_s <= self.share * (time.monotonic() - self._started_s)
        if not self._turns or not (self._unseen or self._failure or is_affordable):
            return
        self._step = step
        self._name = self._turns[0]
        self._is_without_memory = False
        layer = self._layers[self._name]
        self._handles = [
            layer.register_forward_pre_hook(_alias_input),
            layer.register_forward_hook(self._after_forward),
        ]

    def finish(self) -> None:
        """Compare the results of the layer, and record the check if it has passed.

        Raises:
            WrongResultError: If the results of a layer differ from those of PyTorch's plain operators twice.
        """
        name = self._name
        call = self._call
        self._discard()
        if not name:
            return
        failure: str | None = None  # None if the results could not be compared
        if call is not None:
            with self._measured(call.input.device):
                failure = self._compare(name, call)
        if failure:
            self._fail(name, failure)
            return
        # Without a backward pass, after a non-finite loss, the gradients are missing.
        if failure is not None and call is not None and call.is_complete:
            self._pass(name)
        elif self._failure:
            return  # the check is repeated in the next step
        self._end_turn(name, is_used=call is not None or self._is_without_memory)

    def end(self) -> None:
        """Raise a WrongResultError if a failed check could not be repeated before the end of training."""
        if self._failure:
            self._raise(self._turns[0], f"{self._failure}; the training has ended before the check could be repeated")

    def _compare(self, name: str, call: CheckedCall) -> str:
        """Return a description of the first error that exceeds its limit; empty for correct results."""
        layer = self._layers[name]
        errors = {"output": call.output_error}
        if call.gradients and call.is_complete:
            errors |= gradient_errors(layer, call)
        for operation, (error, limit) in zip(errors, torch.stack([*errors.values()]).tolist(), strict=True):
            if error > limit:
                shapes = f"input {_by(call.input.shape)}, weight {_by(layer.weight.shape)}, stride {_by(layer.stride)}"
                return (
                    f"layer {name}, {operation}, {shapes}, {str(call.dtype).removeprefix('torch.')}: error "
                    f"{error:.3g} exceeds the limit {limit:.3g} in step {self._step}"
                )
        return ""

    def _pass(self, name: str) -> None:
        if self._failure:
            warnings.warn(f"self-check: layer {name} has passed the repeated check in step {self._step}", stacklevel=3)
            self._failure = ""
        self._record.passed[name] = self._step
        self._write(durable=False)

    def _fail(self, name: str, failure: str) -> None:
        if self._failure:
            self._raise(name, f"{failure}, and failed a check before")
        self._failure = failure
        warnings.warn(f"self-check: {failure}; the check is repeated in the next step", stacklevel=3)

    def _raise(self, name: str, problem: str) -> None:
        self._record = replace(self._record, wrong_layer=name)
        self._write(durable=True)
        raise WrongResultError(
            f"{problem}; the device {self._layers[name].weight.device} computes wrong results, and the checkpoints "
            f"after step {self._record.trusted_steps} may contain wrong weights"
        )

    def _end_turn(self, name: str, *, is_used: bool) -> None:
        self._turns.popleft()
        if is_used:
            self._turns.append(name)
        else:
            self._unused.append(name)
            del self._record.passed[name]
        if name in self._unseen:
            self._unseen.remove(name)
            if not self._unseen:
                self._end_first_round()

    def _end_first_round(self) -> None:
        """Log how long a round takes from now on, and count the time from now on."""
        now_s = time.monotonic()
        layers = len(self._turns)
        elapsed_s = now_s - self._started_s
        step_s = max(elapsed_s - self._spent_s, 1e-6) / (layers + len(self._unused))
        steps_per_round = max(layers, round(self._spent_s / self.share / step_s))
        unused = ""
        if self._unused:
            unused = f" (not used in training: {', '.join(self._unused)})"
        rank_zero_info(
            f"self-check: {layers} convolutions were checked{unused}; from now on, a round takes about "
            f"{steps_per_round:,} steps ({steps_per_round * step_s / 60:.3g} min)"
        )
        self._started_s = now_s
        self._spent_s = 0.0

    def _after_forward(self, layer: nn.Module, arguments: Sequence[Any], output: Tensor) -> None:
        input = arguments[0]
        if not isinstance(layer, nn.Conv2d) or input.dim() != 4 or not output.numel():
            return
        earlier = self._call
        # Recomputed activations have gradients, unlike those of the first forward pass.
        if earlier is not None and earlier.is_complete and (earlier.gradients or not output.requires_grad):
            return
        self._call = None
        with self._measured(input.device):
            error = output_error(layer, input.detach(), output.detach())
            tensors = {}
            if output.requires_grad:
                tensors = {"output": output, "input": input, "weight": layer.weight}
            differentiated = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
            self._call = CheckedCall(input.detach(), output.dtype, error, dict.fromkeys(differentiated))
            for name, tensor in differentiated.items():
                self._handles.append(tensor.register_hook(partial(_keep_first, self._call.gradients, name)))

    @contextmanager
    def _measured(self, device: torch.device) -> Iterator[None]:
        """Count the time of the block as spent, without earlier work of the device; without memory, do not check."""
        synchronize(device)
        began_s = time.monotonic()
        try:
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                yield
            synchronize(device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._call = None
            self._is_without_memory = True
            warnings.warn(f"self-check: not enough memory to check layer {self._turns[0]}", stacklevel=4)
            free_cached_memory(device)
        finally:
            self._spent_s += time.monotonic() - began_s

    def _write(self, *, durable: bool) -> None:
        """Write the record into the run folder. Without checkpoints, there is nothing to set aside."""
        if not (self._file.parent / CHECKPOINTS).is_dir():
            return
        try:
            write_json(self._file, asdict(self._record), indent=None, durable=durable)
        except OSError as error:
            warnings.warn(f"self-check: could not write {self._file} ({error.strerror})", stacklevel=4)

    def _discard(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._call = None
        self._name = ""


def error_limit(dtype: torch.dtype, terms: int = 1) -> float:
    """Return the largest error, see `largest_error`, of correct results in `dtype`.

    Args:
        dtype: Dtype of the computation.
        terms: Number of terms that an algorithm may add in `dtype`, if it is larger than `PARTS`.
    """
    return float(SAFETY * ROUNDOFF[dtype] * max(PARTS, terms) ** 0.5)


def output_error(layer: nn.Conv2d, input: Tensor, output: Tensor) -> Tensor:
    """Return the largest error of the output of a layer and its limit, `(2,)`."""
    weight = _matrices(layer, input, output.dtype)
    errors = []
    for image, result in zip(input, output, strict=True):
        expected = (weight @ _columns(layer, image, output.dtype)).view(result.shape)
        if layer.bias is not None:
            expected += layer.bias.to(output.dtype).to(expected.dtype).view(-1, 1, 1)
        errors.append(largest_error(result, expected, output.dtype))
    return with_limit(torch.stack(errors).max(), error_limit(output.dtype))


def gradient_errors(layer: nn.Conv2d, call: CheckedCall) -> dict[str, Tensor]:
    """Return the largest error of each gradient that was computed, and its limit, `(2,)` each.

    In float16 and bfloat16, a correct implementation may add the weight gradients of the images in this dtype, as
    PyTorch does on a CPU without instructions for the dtype. The error of such a sum grows with the number and the
    similarity of the images. Therefore it is measured with the tensors of the call, and doubled for another order.
    """
    grad_output = call.gradients.get("output")
    grad_input = call.gradients.get("input")
    grad_weight = call.gradients.get("weight")
    assert grad_output is not None
    weight = _matrices(layer, call.input, call.dtype)
    sum_of_images = torch.zeros_like(weight)
    rounded_sum = torch.zeros_like(weight, dtype=call.dtype)
    input_errors = []
    for index, (image, image_grad_output) in enumerate(zip(call.input, grad_output, strict=True)):
        direction = image_grad_output.to(weight.dtype).reshape(layer.groups, weight.size(1), -1)
        if grad_weight is not None:
            of_image = direction @ _columns(layer, image, call.dtype).transpose(1, 2)
            sum_of_images += of_image
            rounded_sum += of_image.to(call.dtype)
        if grad_input is not None:
            columns = (weight.transpose(1, 2) @ direction).flatten(0, 1).unsqueeze(0)
            expected = F.fold(columns, image.shape[1:], **_geometry(layer))[0]
            input_errors.append(largest_error(grad_input[index], expected, call.dtype))
    errors = {}
    if grad_input is not None:
        limit = error_limit(call.dtype, terms=math.prod(layer.kernel_size))
        errors["gradient of the input"] = with_limit(torch.stack(input_errors).max(), limit)
    if grad_weight is not None:
        # A layer that treats one channel as repeated has equal gradients for all channels.
        size = (layer.out_channels, -1, *layer.kernel_size)
        expected = sum_of_images.view(size).expand_as(grad_weight)
        rounded = rounded_sum.view(size).expand_as(grad_weight)
        rounding = largest_error(rounded, expected, call.dtype)
        error = largest_error(grad_weight, expected, call.dtype)
        errors["gradient of the weight"] = with_limit(error, error_limit(call.dtype) + 2 * rounding)
    return errors


def with_limit(error: Tensor, limit: Tensor | float) -> Tensor:
    """Return an error, 0-d, and its limit, as `(2,)`."""
    return torch.stack([error, torch.as_tensor(limit).to(error)])


def largest_error(result: Tensor, expected: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest `|result - expected| / (|expected| + rms + max / 16)` of all elements, 0-d.

    Root mean square and maximum are those of `|expected|`: terms that cancel each other can be as large as the maximum.

    The error of a result of zeros is about 0.5. It is infinite if a value is not finite where the expected one is far
    from overflow in `dtype`. Elements for which the expected value is not finite either count as correct: they are left
    to the guard against non-finite values.
    """
    is_safe = expected.abs() < torch.finfo(dtype).max / 2
    sizes = torch.where(is_safe, expected, 0).abs()
    typical = sizes.square().mean().sqrt() + sizes.max() / 16
    # Smaller values have lost precision: as results, and as products, which are computed in float32 or float64.
    least = max(torch.finfo(dtype).tiny, torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps)
    errors = (result - expected).abs() / (sizes + typical).clamp(min=least)
    return torch.where(is_safe, errors.nan_to_num(nan=math.inf, posinf=math.inf), 0).max()


def _is_supported(layer: nn.Module) -> bool:
    is_convolution = isinstance(layer, nn.Conv2d) and not isinstance(layer.padding, str)
    return is_convolution and layer.padding_mode == "zeros"


def _geometry(layer: nn.Conv2d) -> dict[str, Any]:
    names = ("kernel_size", "dilation", "padding", "stride")
    return {name: getattr(layer, name) for name in names}


def _columns(layer: nn.Conv2d, image: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the windows of an image `(C, H, W)`, rounded to `dtype`, as `(groups, C / groups * taps, pixels)`."""
    image = image.to(dtype).to(_exact(dtype)).unsqueeze(0)
    columns = F.unfold(image, **_geometry(layer))[0]
    return columns.view(layer.groups, -1, columns.size(-1))


def _matrices(layer: nn.Conv2d, input: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weight, rounded to `dtype`, as `(groups, O / groups, C / groups * taps)`."""
    weight = layer.weight.detach()
    if input.size(1) == 1:  # see `GrayConv2d`
        weight = weight.sum(1, keepdim=True)
    return weight.to(dtype).to(_exact(dtype)).reshape(layer.groups, layer.out_channels // layer.groups, -1)


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _alias_input(layer: nn.Module, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return a view of the input, whose gradient is that of this layer alone."""
    return arguments[0].view_as(arguments[0]), *arguments[1:]


def _keep_first(gradients: dict[str, Tensor | None], name: str, gradient: Tensor) -> None:
    if gradients[name] is None:
        # A copy of the weight's gradient: it can become `weight.grad`, which is changed in place.
        gradients[name] = gradient.clone() if name == "weight" else gradient.detach()


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
