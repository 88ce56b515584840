"""The gradients of one batch, added to those of earlier ones entirely or not at all.

A loss that is not finite, or memory that runs out half way, leaves gradients and running statistics as they were.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts

Compute = Callable[[Batch], tuple[Tensor, dict[str, Tensor], Tensor]]
"""Forward pass and loss of a batch: the total summed over its images, its named parts per image, and the sum of target
scores by which both are divided, where it is above 1."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Those that share a batch and each other's gradients.

    Attributes:
        count: How many there are; their gradients are averaged in the backward pass where it is above 1.
        summed: The sum over all of them of a floating-point tensor; a collective call.
    """

    count: int
    summed: Callable[[Tensor], Tensor]


ALONE = Processes(1, lambda tensor: tensor)


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one batch. Among several processes, losses per image are those of the global batch, the same in all of them.

    Attributes:
        total: 0-d, detached, summed over the images.
        parts: 0-d each, detached, per image.
        is_finite: If not in one process, the batch has left no trace in any.
    """

    total: Tensor
    parts: dict[str, Tensor]
    is_finite: bool


class GuardedStep:
    """Runs forward and backward pass.

    When memory runs out, the batch at hand and all later ones are computed in parts of half as many images. Their
    gradients are summed so that they are those of the whole batch, but for batch normalisation, which sees the parts.
    In the same way the shares of several processes add up to the gradients of the global batch. Memory that runs out is
    an error among several processes, as each of them waits for the gradients of the others.

    Args:
        compute: Forward pass and loss.
        backward: Backward pass.
        max_oom_splits: How often, since training began, running out of memory is answered so; then it is an error.

    Attributes:
        images_at_once: Images of one pass at most; None for all of a batch.
        halvings: How often they were halved.

    Raises:
        ValueError: If `max_oom_splits` is out of range.
    """

    def __init__(self, compute: Compute, backward: Callable[[Tensor], None], max_oom_splits: int = 1) -> None:
        if max_oom_splits < 0:
            raise ValueError(f"model.max_oom_splits is {max_oom_splits}, allowed are 0 and more")
        self.compute, self.backward, self.max_oom_splits = compute, backward, max_oom_splits
        self.images_at_once: int | None = None
        self.halvings = 0
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._statistics: list[Tensor] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold; plain Python."""
        return {"images_at_once": self.images_at_once, "halvings": self.halvings}

    def load(self, state: dict[str, Any]) -> None:
        """Go on as `state` says."""
        self.images_at_once, self.halvings = state["images_at_once"], state["halvings"]

    def watch(self, graph: nn.Module) -> None:
        """Take note of the tensors that a step changes; call it when they lie where they will be trained."""
        self._parameters = list(graph.parameters())
        self._buffers = list(graph.buffers())
        self._copies = [torch.empty_like(buffer) for buffer in self._buffers]
        self._statistics = [buffer for buffer in self._buffers if buffer.is_floating_point()]

    def run(self, batch: Batch, processes: Processes = ALONE) -> Losses:
        """Add the gradients of `batch`.

        Args:
            batch: On the device; this process' share where there are several.
            processes: Those that share it.

        Raises:
            torch.OutOfMemoryError: If memory has run out too often, or a batch cannot be halved.
        """
        while True:
            earlier = self._set_gradients_aside()
            self._copy(self._buffers, self._copies)
            try:
                losses = self._gradients_of(batch) if processes.count == 1 else self._of_share(batch, processes)
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)  # its frames hold the maps that filled the memory
            else:
                if losses.is_finite:
                    self._add(earlier)
                else:
                    self._undo(earlier)
                return losses
            self._undo(earlier)
            self._halve(len(batch), failure, may_halve=processes.count == 1)

    def _gradients_of(self, batch: Batch) -> Losses:
        if self.images_at_once is not None and len(batch) > self.images_at_once:
            return self._gradients_of_parts(in_parts(batch, self.images_at_once), len(batch))
        total, named, _ = self.compute(batch)
        is_finite = self._are_finite(total)
        if is_finite:
            self.backward(total)
        return Losses(total.detach(), named, is_finite)

    def _of_share(self, batch: Batch, processes: Processes) -> Losses:
        """The loss of the global batch is divided by its sum of target scores: known when all have told theirs."""
        total, named, scores = self.compute(batch)
        divisor = scores.clamp(min=1)
        undivided = torch.stack([total.detach() / len(batch), *named.values()]) * divisor
        failed = 0 if self._are_finite(total) else 1
        facts = undivided.new_tensor([failed, len(batch)])
        failures, images, all_scores, *of_all = processes.summed(torch.cat([facts, scores.to(facts)[None], undivided]))
        is_finite = not failures
        all_scores = all_scores.clamp(min=1)
        if is_finite:
            # Gradients are averaged over the processes, where their sum is wanted.
            self.backward(total / len(batch) * divisor * (images / all_scores * processes.count))
        per_image = torch.stack(of_all) / all_scores
        return Losses(per_image[0] * len(batch), dict(zip(named, per_image[1:], strict=True)), is_finite)

    def _gradients_of_parts(self, parts: Sequence[Batch], images: int) -> Losses:
        """The loss of a batch is divided by its sum of target scores, known only when all parts have been seen."""
        scores, undivided, is_finite = torch.zeros(()), torch.zeros(()), True
        named: dict[str, Tensor] = {}
        for part in parts:
            total, named, part_scores = self.compute(part)
            divisor = part_scores.clamp(min=1)
            scores = scores.to(part_scores) + part_scores
            of_part = torch.stack([total.detach() / len(part), *named.values()]) * divisor
            undivided = undivided.to(of_part) + of_part
            is_finite = self._are_finite(total)
            if not is_finite:
                break
            self.backward(total / len(part) * divisor)
        scores = scores.clamp(min=1)
        if is_finite:
            torch._foreach_mul_([one.grad for one in self._parameters if one.grad is not None], images / scores)
        per_image = undivided / scores
        return Losses(per_image[0] * images, dict(zip(named, per_image[1:], strict=True)), is_finite)

    def _are_finite(self, total: Tensor) -> bool:
        """Of the loss and of all running statistics, in one wait for the device."""
        norms = torch._foreach_norm(self._statistics, float("inf")) if self._statistics else []
        return bool(torch.stack([total.detach(), *(norm.to(total) for norm in norms)]).isfinite().all())

    def _set_gradients_aside(self) -> list[Tensor | None]:
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    def _add(self, earlier: list[Tensor | None]) -> None:
        both = [
            (before, parameter.grad, parameter)
            for before, parameter in zip(earlier, self._parameters, strict=True)
            if before is not None and parameter.grad is not None
        ]
        if both:
            torch._foreach_add_([before for before, _, _ in both], [gradient for _, gradient, _ in both])
        for before, parameter in zip(earlier, self._parameters, strict=True):
            if before is not None:
                parameter.grad = before

    def _undo(self, earlier: list[Tensor | None]) -> None:
        for before, parameter in zip(earlier, self._parameters, strict=True):
            parameter.grad = before
        self._copy(self._copies, self._buffers)

    @staticmethod
    @torch.no_grad()
    def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
        if sources:
            torch._foreach_copy_(targets, sources)

    def _halve(self, images: int, failure: torch.OutOfMemoryError, *, may_halve: bool) -> None:
        at_once = min(images, self.images_at_once or images)
        if not may_halve or self.halvings >= self.max_oom_splits or at_once < 2:
            raise failure
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.halvings += 1
        self.images_at_once = -(-at_once // 2)
        rank_zero_warn(
            f"out of memory with {at_once} of a batch's {images} images at once: from here on {self.images_at_once} at "
            "once, their gradients summed; order, steps and schedules stay as they are "
            f"({str(failure).partition(chr(10))[0]})"
        )
