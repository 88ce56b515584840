"""Forward and backward pass of one batch, whose gradients are added entirely or not at all, and their accumulation.

A non-finite loss, or an out-of-memory error within a batch, leaves gradients and running statistics unchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts
from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory

Compute = Callable[[Batch], tuple[Tensor, dict[str, Tensor], Tensor]]
"""Forward pass and loss of a batch: the total summed over its images, its named parts per image, and the sum of target
scores. Total and parts are divided by this sum, or by 1 if it is smaller. Total and scores are 0-d, or `(2,)` for a
head with a one-to-many and a one-to-one branch; the parts are those of the last branch."""

ONE_TO_ONE = "one2one_"
"""Part of the names of the parameters which the loss of the one-to-one branch changes; that loss changes no others."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one batch; with several ranks those of the global batch, equal in all ranks."""

    total: Tensor  # 0-d, detached, summed over the images
    parts: dict[str, Tensor]  # 0-d each, detached, per image
    is_finite: bool  # whether loss and running statistics are finite in all ranks; otherwise the batch was skipped


class GuardedStep:
    """Forward and backward pass.

    After an out-of-memory error this batch and all later ones are computed in parts of half as many images. The
    gradients of the parts are weighted and summed, so that they equal those of the whole batch, except that batch
    normalisation uses the statistics of the parts. The shares of several ranks are summed to the gradients of the
    global batch in the same way. With several ranks an out-of-memory error is fatal, because the other ranks wait for
    the gradients of this one.

    `max_oom_splits` out-of-memory errors since training began halve the batch; the next one is fatal.

    With mixed precision, `backward` multiplies the loss by the scale of the `GradScaler`, and the gradients that this
    class sums, weights and restores are scaled ones. The scale is a power of two and changes at updates only, so that
    gradients of several steps can be summed. The losses are unscaled. A gradient that overflows in float16 is no reason
    to skip a batch here: the scaler skips the update and halves the scale. bfloat16 needs no scaler.
    """

    def __init__(self, compute: Compute, backward: Callable[[Tensor], None], max_oom_splits: int = 1) -> None:
        self.compute, self.backward, self.max_oom_splits = compute, backward, max_oom_splits
        self.images_at_once: int | None = None  # largest number of images per pass; None for the whole batch
        self.halvings = 0  # of `images_at_once`
        self._world_size = 1
        self._summed: Callable[[Tensor], Tensor]
        self._parameters: list[nn.Parameter] = []
        self._buffers: list[list[Tensor]] = []  # by dtype: a fused copy supports tensors of one dtype only
        self._copies: list[list[Tensor]] = []
        self._one_to_one: set[int] = set()
        self._statistics: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {"images_at_once": self.images_at_once, "halvings": self.halvings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images_at_once, self.halvings = state["images_at_once"], state["halvings"]

    def prepare(self, graph: nn.Module, world_size: int = 1, summed: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """Register the tensors that a step changes; call it when they are on the device of the training.

        The backward pass averages gradients over the `world_size` ranks that share each batch; `summed` returns the sum
        of a floating-point tensor over all ranks, by a collective call.
        """
        self._world_size, self._summed = world_size, summed
        self._parameters = list(graph.parameters())
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in graph.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = list(by_dtype.values())
        self._copies = [[torch.empty_like(buffer) for buffer in buffers] for buffers in self._buffers]
        self._statistics = [buffer for buffer in graph.buffers() if buffer.is_floating_point()]
        self._one_to_one = {id(one) for name, one in graph.named_parameters() if ONE_TO_ONE in name}

    def run(self, batch: Batch) -> Losses:
        """Add the gradients of `batch`, which is on the device; with several ranks, this rank's share of the batch.

        Raises:
            RuntimeError: Out of memory, and no further halving is allowed or possible. It is a
                `torch.OutOfMemoryError` if the backend raises one.
        """
        while True:
            earlier = [parameter.grad for parameter in self._parameters]
            for parameter in self._parameters:
                parameter.grad = None
            self._copy(self._buffers, self._copies)
            try:
                losses = self._gradients(batch) if self._world_size == 1 else self._gradients_of_share(batch)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                failure = error.with_traceback(None)  # its frames keep the activations alive
            else:
                if losses.is_finite:
                    self._add(earlier)
                else:
                    self._undo(earlier)
                return losses
            self._undo(earlier)
            self._halve(len(batch), failure)

    def _gradients(self, batch: Batch) -> Losses:
        if self.images_at_once is not None and len(batch) > self.images_at_once:
            return self._gradients_of_parts(in_parts(batch, self.images_at_once), len(batch))
        totals, parts, _ = self.compute(batch)
        total = totals.sum()
        is_finite = self._are_finite(total)
        if is_finite:
            self.backward(total)
        return Losses(total.detach(), parts, is_finite)

    def _gradients_of_share(self, batch: Batch) -> Losses:
        """Scale the loss of this share by the target scores of the global batch, which all ranks exchange first."""
        totals, parts, scores = self.compute(batch)
        divisor = scores.clamp(min=1)
        undivided = _undivided(totals, parts, divisor, len(batch))
        counts = undivided.new_tensor([not self._are_finite(totals.sum()), len(batch)])
        sums = self._summed(torch.cat([counts, scores.to(counts).flatten(), undivided]))
        (failures, images), all_scores, sums = torch.split(sums, [2, scores.numel(), len(undivided)])
        is_finite = not failures
        all_scores = all_scores.clamp(min=1)
        if is_finite:
            # The backward pass averages gradients over the ranks, but their sum is needed.
            share = totals / len(batch) * divisor * (images / all_scores.view_as(scores) * self._world_size)
            self.backward(share.sum())
        total, losses = _divided(sums, parts, all_scores)
        return Losses(total * len(batch), losses, is_finite)

    def _gradients_of_parts(self, batches: Sequence[Batch], images: int) -> Losses:
        """Scale the gradients by the target scores of the whole batch, known only after the last part."""
        scores, undivided, is_finite = torch.zeros(()), torch.zeros(()), True
        parts: dict[str, Tensor] = {}
        for batch in batches:
            totals, parts, batch_scores = self.compute(batch)
            divisor = batch_scores.clamp(min=1)
            scores = scores.to(batch_scores) + batch_scores
            of_batch = _undivided(totals, parts, divisor, len(batch))
            undivided = undivided.to(of_batch) + of_batch
            is_finite = self._are_finite(totals.sum())
            if not is_finite:
                break
            self.backward((totals / len(batch) * divisor).sum())
        scores = scores.clamp(min=1).flatten()
        if is_finite:
            for branch, factor in ((False, images / scores[0]), (True, images / scores[-1])):
                own = [one.grad for one in self._parameters if (id(one) in self._one_to_one) == branch]
                if gradients := [gradient for gradient in own if gradient is not None]:
                    torch._foreach_mul_(gradients, factor)
        total, losses = _divided(undivided, parts, scores)
        return Losses(total * images, losses, is_finite)

    def _are_finite(self, total: Tensor) -> bool:
        """Whether the loss and all running statistics are finite, with one synchronisation of the device."""
        norms = torch._foreach_norm(self._statistics, float("inf")) if self._statistics else []
        return bool(torch.stack([total.detach(), *(norm.to(total) for norm in norms)]).isfinite().all())

    def _add(self, earlier: list[Tensor | None]) -> None:
        pairs = [(before, one) for before, one in zip(earlier, self._parameters, strict=True) if before is not None]
        both = [(before, one.grad) for before, one in pairs if one.grad is not None]
        if both:
            torch._foreach_add_([before for before, _ in both], [gradient for _, gradient in both])
        for before, parameter in pairs:
            parameter.grad = before

    def _undo(self, earlier: list[Tensor | None]) -> None:
        for before, parameter in zip(earlier, self._parameters, strict=True):
            parameter.grad = before
        self._copy(self._copies, self._buffers)

    @staticmethod
    @torch.no_grad()
    def _copy(sources: list[list[Tensor]], targets: list[list[Tensor]]) -> None:
        for target, source in zip(targets, sources, strict=True):
            torch._foreach_copy_(target, source)

    def _halve(self, images: int, failure: RuntimeError) -> None:
        at_once = min(images, self.images_at_once or images)
        if self._world_size > 1 or self.halvings >= self.max_oom_splits or at_once < 2:
            raise failure
        free_cached_memory(self._parameters[0].device)
        self.halvings += 1
        self.images_at_once = -(-at_once // 2)
        rank_zero_warn(
            f"out of memory with {at_once} of {images} images: from now on {self.images_at_once} images are computed "
            f"at once and their gradients summed ({str(failure).partition(chr(10))[0]})"
        )


def _undivided(totals: Tensor, parts: dict[str, Tensor], divisor: Tensor, images: int) -> Tensor:
    """Return the totals per image and the parts of a batch, multiplied by the scores that they were divided by."""
    per_image = totals.detach().flatten() / images * divisor.flatten()
    return torch.cat([per_image, torch.stack([*parts.values()]) * divisor.flatten()[-1]])


def _divided(undivided: Tensor, parts: dict[str, Tensor], scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the total per image and the parts of several batches, from the sum of `_undivided` over the batches."""
    totals, of_parts = torch.split(undivided, [len(scores), len(parts)])
    return (totals / scores).sum(), dict(zip(parts, of_parts / scores[-1], strict=True))


class Accumulation:
    """Counts the steps since the last update and stores their summed gradients in checkpoints.

    Checkpoints contain unscaled gradients, so that a run can be resumed with another precision.
    """

    def __init__(self) -> None:
        self.steps = 0  # since the last update
        self._loaded: dict[str, Tensor] = {}

    def state_dict(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> dict[str, Any]:
        """Return the number of steps and the gradients of `graph`, divided by the scale of `scaler`."""
        scale = scale_of(scaler)
        gradients = {name: parameter.grad for name, parameter in graph.named_parameters() if parameter.grad is not None}
        return {
            "steps": self.steps,
            "gradients": {name: gradient if scale == 1.0 else gradient / scale for name, gradient in gradients.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the number of steps, and keep the gradients until `restore` is called."""
        self.steps, self._loaded = state["steps"], state["gradients"]

    def restore(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> None:
        """Set the loaded gradients of all trainable parameters; call it when they are on their device."""
        scale = scale_of(scaler)
        for name, parameter in graph.named_parameters():
            if name in self._loaded and parameter.requires_grad:
                parameter.grad = self._loaded[name].to(parameter) * scale
        self._loaded = {}

    def reset(self, graph: nn.Module) -> None:
        graph.zero_grad(set_to_none=True)
        self.steps = 0


def scale_of(scaler: torch.amp.GradScaler | None) -> float:
    """Return the current loss scale: a power of two, so that dividing gradients by it is exact."""
    return 1.0 if scaler is None else float(scaler.get_scale())
