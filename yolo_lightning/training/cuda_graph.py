"""Forward and backward pass of a network, recorded as CUDA graphs and replayed.

A replay launches all kernels of a pass at once. With a small network and a small batch, the host needs more time for
single launches than the GPU for the kernels.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from yolo_lightning.errors import log_unexpected
from yolo_lightning.utils.accelerator import is_out_of_memory

WARM_UP_PASSES = 3
"""Passes before a recording, as in `torch.cuda.make_graphed_callables`: libraries allocate and select algorithms."""
CAPTURE_MODE = "thread_local"
"""The thread that pins batches may allocate during a recording; `make_graphed_callables` would fail then."""
FEATURES = "feats"
"""Output of Ultralytics' heads of which the loss reads the shapes only."""


class RecordedNetwork:
    """A network in training whose passes are recorded for the first shape of two successive inputs, and replayed.

    Inputs of another shape, such as a last and smaller batch, are computed by the network itself. The parameters must
    stay the same tensors; their values may change. Running statistics change as in the network itself. A network that
    cannot be recorded is reported with a warning and computed without a recording.

    Args:
        network: A network on a CUDA device, without hooks, whose output consists of dictionaries, lists and tensors.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._recording: Recording | None = None
        self._previous_shape: torch.Size | None = None
        self._is_refused = False

    def __call__(self, inputs: Tensor) -> Any:
        """Return the output of the network for `(B, C, H, W)` inputs on its device.

        The output is valid until the next call.

        Raises:
            RuntimeError: If the memory is not sufficient. The next call records anew.
        """
        if self._recording is None and not self._is_refused and inputs.shape == self._previous_shape:
            self._record(inputs)
        self._previous_shape = inputs.shape
        if self._recording is None or not self._recording.fits(inputs):
            return self._network(inputs)
        return self._recording.replay(inputs)

    def _record(self, inputs: Tensor) -> None:
        try:
            with _kept_buffers(self._network):
                self._recording = Recording(self._network, inputs)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            log_unexpected(error, RuntimeError)
            self._is_refused = True
            rank_zero_warn(
                f"model.convolution.cuda_graph: the network cannot be recorded ({error}); the training continues "
                "without a recording"
            )


class Recording:
    """CUDA graphs of the forward and backward pass of a network for inputs of one shape.

    Creating it changes the buffers of the network.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.inputs = inputs.clone()
        self.parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.forward_graph = torch.cuda.CUDAGraph()
        self.backward_graph = torch.cuda.CUDAGraph()
        dtype = torch.get_autocast_dtype("cuda")
        is_mixed = torch.is_autocast_enabled("cuda")
        # A cached 16-bit copy of a weight would not follow the weight.
        with torch.autocast("cuda", dtype, enabled=is_mixed, cache_enabled=False):
            self._warm_up(network)
            pool = torch.cuda.graph_pool_handle()
            with torch.cuda.graph(self.forward_graph, pool=pool, capture_error_mode=CAPTURE_MODE):
                output = without_feature_gradients(network(self.inputs))
        self.outputs, self._structure = tree_flatten(output)
        differentiable = [tensor for tensor in self.outputs if tensor.requires_grad]
        self.output_gradients = [torch.empty_like(tensor) for tensor in differentiable]
        with torch.cuda.graph(self.backward_graph, pool=pool, capture_error_mode=CAPTURE_MODE):
            self.gradients = torch.autograd.grad(
                differentiable, self.parameters, self.output_gradients, allow_unused=True
            )

    def _warm_up(self, network: nn.Module) -> None:
        """Compute passes on another stream, so that no tensor of the recording belongs to the current one."""
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(WARM_UP_PASSES):
                outputs, _ = tree_flatten(without_feature_gradients(network(self.inputs)))
                differentiable = [tensor for tensor in outputs if tensor.requires_grad]
                ones = [torch.ones_like(tensor) for tensor in differentiable]
                torch.autograd.grad(differentiable, self.parameters, ones, allow_unused=True)
        torch.cuda.synchronize()

    def fits(self, inputs: Tensor) -> bool:
        """Whether the recording is valid for these inputs in the current mode of autograd."""
        is_equal = inputs.shape == self.inputs.shape and inputs.dtype == self.inputs.dtype
        return is_equal and torch.is_grad_enabled()

    def replay(self, inputs: Tensor) -> Any:
        """Return the output for inputs that fit; its backward pass is replayed too."""
        outputs = Replay.apply(self, inputs, *self.parameters)
        return tree_unflatten(outputs, self._structure)


class Replay(torch.autograd.Function):
    """Connects the replayed passes with autograd."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, inputs: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        ctx.set_materialize_grads(False)
        recording.inputs.copy_(inputs)
        recording.forward_graph.replay()
        outputs = [tensor.detach() for tensor in recording.outputs]
        pairs = zip(outputs, recording.outputs, strict=True)
        ctx.mark_non_differentiable(*[output for output, recorded in pairs if not recorded.requires_grad])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        recording: Recording = ctx.recording
        pairs = zip(gradients, recording.outputs, strict=True)
        arriving = [gradient for gradient, output in pairs if output.requires_grad]
        for gradient, target in zip(arriving, recording.output_gradients, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)
        recording.backward_graph.replay()
        return None, None, *_copies(recording.gradients)


def without_feature_gradients(output: Any) -> Any:
    """Detach `FEATURES` in the output of a head: the loss has no gradient for them, and zeros would be propagated."""
    if not isinstance(output, dict):
        return output
    result = {}
    for name, value in output.items():
        if name == FEATURES:
            result[name] = [feature.detach() for feature in value]
        else:
            result[name] = without_feature_gradients(value)
    return result


def _copies(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copy gradients out of the memory that the next replay overwrites."""
    present = [gradient for gradient in gradients if gradient is not None]
    copies = iter(torch._foreach_mul(present, 1.0))
    return [None if gradient is None else next(copies) for gradient in gradients]


@contextmanager
def _kept_buffers(network: nn.Module) -> Iterator[None]:
    """Restore the buffers of a network after the block, also after an error."""
    buffers = list(network.buffers())
    copies = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, copy in zip(buffers, copies, strict=True):
                buffer.copy_(copy)
