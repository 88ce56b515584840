"""Self-check: one random convolution of a step is computed again by PyTorch's plain operators and compared.

A vendor library or a GPU kernel can begin to return wrong results after hours, without an error. The check only reads:
a training with it equals one without it, bit for bit.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory, synchronize
from yolo_lightning.utils.files import replacing
from yolo_lightning.utils.run_files import CHECKPOINTS, SELF_CHECK_FILE

LIMITS = {torch.float64: 1e-6, torch.float32: 0.02, torch.float16: 0.05, torch.bfloat16: 0.25}
"""Largest error of a correct result, see `largest_error`, by the dtype in which the layer computes.

Correct layers of yolov8n, with 320 and 640 pixels on a CPU, have errors of at most 5e-5 in float32 (2e-4 with `gemm`)
and 4e-3, the rounding of a result, in bfloat16 (0.09 with `gemm`, which sums parts of a gradient in bfloat16). float32
includes products in TF32, whose rounding is 5e-4. A result of zeros has an error of about 0.5.
"""


class WrongResultError(RuntimeError):
    """A layer has computed a wrong result."""


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
    """Checks a random convolution of a step: output, gradient of the input and gradient of the weight.

    Call `begin` before the forward pass and `finish` after the backward pass. Hooks exist in checked steps only. A step
    is checked while the checks have taken less than `share` of the time since `prepare`, so that a check is rarer where
    it is slow. The layer follows from seed, rank and step; no random generator is used. Of a batch in parts, the first
    part is checked. A check that runs out of memory is left out.

    Args:
        share: Share of the training time for checks, >= 0 and <= 1; 0 disables them, 1 checks every step.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._layers: dict[str, nn.Conv2d] = {}
        self._folder: Path | None = None
        self._stream = ""
        self._step = 0
        self._name = ""
        self._call: CheckedCall | None = None
        self._handles: list[RemovableHandle] = []
        self._started_s = self._spent_s = 0.0

    def prepare(self, graph: nn.Module, seed: int, rank: int, run: Path | None) -> None:
        """Find the convolutions of a graph; `run` is the run folder for the record of passed checks, or None."""
        self._layers = {name: layer for name, layer in graph.named_modules() if _is_supported(layer)}
        self._stream, self._folder = f"{seed} {rank}", run
        self._started_s, self._spent_s = time.monotonic(), 0.0

    def begin(self, step: int) -> None:
        """Select the layer of `step`, which counts from 1, if the step is to be checked."""
        self._discard()
        if not self.share or not self._layers or self._spent_s > self.share * (time.monotonic() - self._started_s):
            return
        self._step = step
        self._name = random.Random(f"{self._stream} {step}").choice([*self._layers])
        layer = self._layers[self._name]
        self._handles = [
            layer.register_forward_pre_hook(_alias_input),
            layer.register_forward_hook(self._after_forward),
        ]

    def finish(self) -> None:
        """Compare the gradients, and record the check if it has passed.

        Raises:
            WrongResultError: If a result differs from that of PyTorch's plain operators.
        """
        call, layer = self._call, self._layers.get(self._name)
        self._discard()
        if call is None or layer is None:
            return
        with self._measured(call.input.device):
            errors = {"output": call.output_error}
            if call.is_complete:
                errors |= gradient_errors(layer, call)
            found = dict(zip(errors, torch.stack([*errors.values()]).tolist(), strict=True))
            operation = max(found, key=lambda name: found[name])
            if found[operation] > LIMITS[call.dtype]:
                shapes = f"input {_by(call.input.shape)}, weight {_by(layer.weight.shape)}, stride {_by(layer.stride)}"
                raise WrongResultError(
                    f"layer {self._name}, {operation}, {shapes}, {str(call.dtype).removeprefix('torch.')}: error "
                    f"{found[operation]:.3g} exceeds the limit {LIMITS[call.dtype]:g} in step {self._step}; the device "
                    f"{call.input.device} computes wrong results"
                )
            if call.is_complete:
                self._record()

    def _after_forward(self, layer: nn.Module, arguments: Sequence[Any], output: Tensor) -> None:
        input = arguments[0]
        is_batch = isinstance(layer, nn.Conv2d) and input.dim() == 4 and output.numel() > 0
        if not is_batch or not output.requires_grad or (self._call is not None and self._call.is_complete):
            return
        assert isinstance(layer, nn.Conv2d)
        self._call = None
        with self._measured(input.device):
            error = output_error(layer, input.detach(), output.detach())
            tensors = {"output": output, "input": input, "weight": layer.weight}
            wanted = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
            self._call = CheckedCall(input.detach(), output.dtype, error, dict.fromkeys(wanted))
            for name, tensor in wanted.items():
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
            free_cached_memory(device)
        finally:
            self._spent_s += time.monotonic() - began_s

    def _record(self) -> None:
        """Write the step into the run folder. Without checkpoints, there is nothing to select by this step."""
        if self._folder is not None and (self._folder / CHECKPOINTS).is_dir():
            with suppress(OSError), replacing(self._folder / SELF_CHECK_FILE, durable=False) as path:
                path.write_text(f'{{"passed_step": {self._step}}}\n')

    def _discard(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._call = [], None


def output_error(layer: nn.Conv2d, input: Tensor, output: Tensor) -> Tensor:
    """Return the largest error of the output of a layer, 0-d."""
    weight = _matrices(layer, input, output.dtype)
    errors = []
    for image, found in zip(input, output, strict=True):
        expected = (weight @ _columns(layer, image, output.dtype)).view(found.shape)
        if layer.bias is not None:
            expected += layer.bias.to(output.dtype).to(expected.dtype).view(-1, 1, 1)
        errors.append(largest_error(found, expected, output.dtype))
    return torch.stack(errors).max()


def gradient_errors(layer: nn.Conv2d, call: CheckedCall) -> dict[str, Tensor]:
    """Return the largest error, 0-d, of each gradient that was computed."""
    grad_output, grad_input, grad_weight = (call.gradients.get(name) for name in ("output", "input", "weight"))
    assert grad_output is not None
    weight = _matrices(layer, call.input, call.dtype)
    of_weight, of_input = torch.zeros_like(weight), []
    for index, (image, own_grad) in enumerate(zip(call.input, grad_output, strict=True)):
        direction = own_grad.to(weight.dtype).reshape(layer.groups, weight.size(1), -1)
        if grad_weight is not None:
            of_weight += direction @ _columns(layer, image, call.dtype).transpose(1, 2)
        if grad_input is not None:
            columns = (weight.transpose(1, 2) @ direction).flatten(0, 1).unsqueeze(0)
            expected = F.fold(columns, image.shape[1:], **_geometry(layer))[0]
            of_input.append(largest_error(grad_input[index], expected, call.dtype))
    errors = {}
    if grad_input is not None:
        errors["gradient of the input"] = torch.stack(of_input).max()
    if grad_weight is not None:
        # A layer that treats one channel as repeated has equal gradients for all channels.
        expected = of_weight.view(layer.out_channels, -1, *layer.kernel_size).expand_as(grad_weight)
        errors["gradient of the weight"] = largest_error(grad_weight, expected, call.dtype)
    return errors


def largest_error(found: Tensor, expected: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest `|found - expected| / (|expected| + rms + max / 16)` of all elements, 0-d.

    Root mean square and maximum are those of `|expected|`: terms that cancel each other can be as large as the maximum.

    It is infinite if a value is not finite where the expected one is far from overflow in `dtype`. Elements for which
    the expected value is not finite either count as correct: they are left to the guard against non-finite values.
    """
    is_safe = expected.abs() < torch.finfo(dtype).max / 2
    sizes = torch.where(is_safe, expected, 0).abs()
    typical = sizes.square().mean().sqrt() + sizes.max() / 16
    least = torch.finfo(dtype).tiny / torch.finfo(dtype).eps  # smaller values have lost precision
    errors = (found - expected).abs() / (sizes + typical).clamp(min=least)
    infinite = float("inf")
    return torch.where(is_safe, errors.nan_to_num(nan=infinite, posinf=infinite), 0).max()


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
