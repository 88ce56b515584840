"""Gradients of one batch, added entirely or not at all, and their accumulation.

A non-finite loss, or an out-of-memory error within a batch, leaves gradients and running statistics unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts
from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory

ONE_TO_ONE = "one2one_"
"""Part of the names of the parameters which the loss of the one-to-one branch changes; that loss changes no others."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one batch; with several ranks those of the global batch, equal in all ranks."""

    total: Tensor  # 0-d, detached, summed over the images
    parts: dict[str, Tensor]  # 0-d each, detached, per image
    is_finite: bool  # whether loss and running statistics are finite in all ranks; otherwise the batch was skipped


class GuardedStep:
    """Attempts at the forward and backward pass of a batch.

    The caller computes forward pass, loss and backward pass of every part of an attempt:

        for attempt in guarded_step.attempts(batch):
            with attempt:
                for part in attempt:
                    totals, parts = loss(graph(part.images), part)
                    weighted = attempt.weighted(part, totals, parts, scores)
                    if attempt.is_finite:
                        weighted.backward()
        losses = attempt.losses

    After an out-of-memory error this batch and all later ones are computed in parts of half as many images. The
    gradients of the parts are weighted and summed, so that they equal those of the whole batch, except that batch
    normalization uses the statistics of the parts. The shares of several ranks are summed to the gradients of the
    global batch in the same way. With several ranks an out-of-memory error is fatal, because the other ranks wait for
    the gradients of this one.

    `max_oom_splits` out-of-memory errors since training began split the batch; the next one is fatal.

    With mixed precision, the caller multiplies the loss by the scale of the `GradScaler`, and the gradients that this
    class sums, weights and restores are scaled ones. The scale is a power of two and changes at optimizer steps only,
    so that gradients of several steps can be summed. The losses are unscaled. A gradient that overflows in float16 is
    no reason to skip a batch here: the scaler skips the optimizer step and halves the scale. bfloat16 needs no scaler.
    """

    def __init__(self, max_oom_splits: int = 1) -> None:
        self.max_oom_splits = max_oom_splits
        self.images_at_once: int | None = None  # largest number of images per pass; None for the whole batch
        self.splits = 0  # out-of-memory errors that have halved `images_at_once`
        self.world_size = 1
        self.summed: Callable[[Tensor], Tensor] = torch.clone
        self.parameters: list[nn.Parameter] = []
        self.one_to_one: set[int] = set()  # ids of parameters, see `ONE_TO_ONE`
        self._buffers: list[list[Tensor]] = []  # by dtype: a fused copy supports tensors of one dtype only
        self._copies: list[list[Tensor]] = []
        self._statistics: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {"images_at_once": self.images_at_once, "splits": self.splits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.images_at_once, self.splits = state.get("images_at_once"), state.get("splits", 0)

    def prepare(self, graph: nn.Module, world_size: int = 1, summed: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """Register the tensors that a step changes; call it when they are on the device of the training.

        The backward pass averages gradients over the `world_size` ranks that share each batch; `summed` returns the sum
        of a floating-point tensor over all ranks, by a collective call.
        """
        self.world_size, self.summed = world_size, summed
        self.parameters = list(graph.parameters())
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in graph.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        self._buffers = list(by_dtype.values())
        self._copies = [[torch.empty_like(buffer) for buffer in buffers] for buffers in self._buffers]
        self._statistics = [buffer for buffer in graph.buffers() if buffer.is_floating_point()]
        self.one_to_one = {id(one) for name, one in graph.named_parameters() if ONE_TO_ONE in name}

    def attempts(self, batch: Batch) -> Iterator["BatchAttempt"]:
        """Yield attempts at `batch`, which is on the device, until one does not run out of memory.

        With several ranks, `batch` is the share of this rank.
        """
        kind: type[BatchAttempt]
        is_retry = False
        while True:
            if self.world_size > 1:
                kind = ShareAttempt
            elif self.images_at_once is not None and len(batch) > self.images_at_once:
                kind = SplitAttempt
            else:
                kind = BatchAttempt
            attempt = kind(self, batch, is_retry=is_retry)
            yield attempt
            is_retry = attempt.ran_out_of_memory
            if not is_retry:
                return

    def split(self, images: int, error: BaseException) -> bool:
        """Halve the number of images computed at once after an out-of-memory error; return whether this is allowed."""
        at_once = min(images, self.images_at_once or images)
        if self.world_size > 1 or self.splits >= self.max_oom_splits or at_once < 2:
            return False
        self.splits += 1
        self.images_at_once = -(-at_once // 2)
        rank_zero_warn(
            f"out of memory with {at_once} of {images} images: from now on {self.images_at_once} images are computed "
            f"at once and their gradients summed ({str(error).partition(chr(10))[0]})"
        )
        return True

    def save_buffers(self) -> None:
        _copy(self._buffers, self._copies)

    def restore_buffers(self) -> None:
        _copy(self._copies, self._buffers)

    def are_finite(self, total: Tensor) -> bool:
        """Whether the loss and all running statistics are finite, with one synchronization of the device."""
        norms = torch._foreach_norm(self._statistics, float("inf")) if self._statistics else []
        return bool(torch.stack([total.detach(), *(norm.to(total) for norm in norms)]).isfinite().all())


class BatchAttempt:
    """Context for the passes over one batch. Leaves gradients and running statistics unchanged unless they succeed.

    An out-of-memory error that splits the batch ends the context without an exception.

    Attributes:
        is_finite: Whether loss and running statistics are finite so far.
        losses: Losses of the batch, after the context.
        ran_out_of_memory: Whether the batch has to be computed again in smaller parts.
    """

    def __init__(self, step: GuardedStep, batch: Batch, *, is_retry: bool = False) -> None:
        self.step, self.batch, self._is_retry = step, batch, is_retry
        self.is_finite, self.ran_out_of_memory = True, False
        self.losses: Losses
        self._earlier: list[Tensor | None] = []

    def __enter__(self) -> Self:
        if self._is_retry:  # the caller has released the tensors of the failed attempt
            free_cached_memory(self.step.parameters[0].device)
        self._earlier = [parameter.grad for parameter in self.step.parameters]
        for parameter in self.step.parameters:
            parameter.grad = None
        self.step.save_buffers()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is None:
            self.finish()
            if self.is_finite:
                self._add_earlier()
            else:
                self._undo()
            return False
        if not isinstance(error, RuntimeError) or not is_out_of_memory(error):
            return False
        self._undo()
        self.ran_out_of_memory = self.step.split(len(self.batch), error)
        return self.ran_out_of_memory

    def __iter__(self) -> Iterator[Batch]:
        """Yield the parts of the batch; none after a non-finite loss."""
        yield self.batch

    def weighted(self, part: Batch, totals: Tensor, parts: dict[str, Tensor], scores: Tensor) -> Tensor:
        """Return the loss of a part for the backward pass, and set `is_finite`.

        Args:
            part: The part.
            totals: Total loss, summed over its images: 0-d, or `(2,)` for a head with a one-to-many and a one-to-one
                branch.
            parts: Named parts of the loss per image, of the last branch.
            scores: Sum of target scores, shaped as `totals`. Totals and parts are divided by this sum, or by 1 if it is
                smaller.
        """
        total = totals.sum()
        self.is_finite = self.step.are_finite(total)
        self.losses = Losses(total.detach(), parts, self.is_finite)
        return total

    def finish(self) -> None:
        """Weight the gradients and set `losses`."""

    def _add_earlier(self) -> None:
        pairs = [(old, one) for old, one in zip(self._earlier, self.step.parameters, strict=True) if old is not None]
        both = [(old, one.grad) for old, one in pairs if one.grad is not None]
        if both:
            torch._foreach_add_([old for old, _ in both], [gradient for _, gradient in both])
        for old, parameter in pairs:
            parameter.grad = old

    def _undo(self) -> None:
        for old, parameter in zip(self._earlier, self.step.parameters, strict=True):
            parameter.grad = old
        self.step.restore_buffers()


class ShareAttempt(BatchAttempt):
    """The share of one of several ranks."""

    def weighted(self, part: Batch, totals: Tensor, parts: dict[str, Tensor], scores: Tensor) -> Tensor:
        """Scale the loss by the target scores of the global batch, which all ranks exchange first."""
        divisor = scores.clamp(min=1)
        undivided = _undivided(totals, parts, divisor, len(part))
        counts = undivided.new_tensor([not self.step.are_finite(totals.sum()), len(part)])
        sums = self.step.summed(torch.cat([counts, scores.to(counts).flatten(), undivided]))
        (failures, images), all_scores, sums = torch.split(sums, [2, scores.numel(), len(undivided)])
        self.is_finite = not failures
        all_scores = all_scores.clamp(min=1)
        total, losses = _divided(sums, parts, all_scores)
        self.losses = Losses(total * len(part), losses, self.is_finite)
        # The backward pass averages gradients over the ranks, but their sum is needed.
        share: Tensor = totals / len(part) * divisor * (images / all_scores.view_as(scores) * self.step.world_size)
        return share.sum()


class SplitAttempt(BatchAttempt):
    """Parts with fewer images. Their weights depend on the scores of all parts and are applied to the gradients."""

    def __init__(self, step: GuardedStep, batch: Batch, *, is_retry: bool = False) -> None:
        super().__init__(step, batch, is_retry=is_retry)
        self._scores, self._undivided = torch.zeros(()), torch.zeros(())
        self._parts: dict[str, Tensor] = {}

    def __iter__(self) -> Iterator[Batch]:
        assert self.step.images_at_once is not None
        for part in in_parts(self.batch, self.step.images_at_once):
            if self.is_finite:
                yield part

    def weighted(self, part: Batch, totals: Tensor, parts: dict[str, Tensor], scores: Tensor) -> Tensor:
        divisor = scores.clamp(min=1)
        undivided = _undivided(totals, parts, divisor, len(part))
        self._scores, self._undivided = self._scores.to(scores) + scores, self._undivided.to(undivided) + undivided
        self._parts, self.is_finite = parts, self.step.are_finite(totals.sum())
        loss: Tensor = (totals / len(part) * divisor).sum()
        return loss

    def finish(self) -> None:
        scores, images = self._scores.clamp(min=1).flatten(), len(self.batch)
        if self.is_finite:
            for branch, factor in ((False, images / scores[0]), (True, images / scores[-1])):
                own = [one.grad for one in self.step.parameters if (id(one) in self.step.one_to_one) == branch]
                if gradients := [gradient for gradient in own if gradient is not None]:
                    torch._foreach_mul_(gradients, factor)
        total, losses = _divided(self._undivided, self._parts, scores)
        self.losses = Losses(total * images, losses, self.is_finite)


@torch.no_grad()
def _copy(sources: list[list[Tensor]], targets: list[list[Tensor]]) -> None:
    for target, source in zip(targets, sources, strict=True):
        torch._foreach_copy_(target, source)


def _undivided(totals: Tensor, parts: dict[str, Tensor], divisor: Tensor, images: int) -> Tensor:
    """Return the totals per image and the parts of a batch, multiplied by the scores that they were divided by."""
    per_image = totals.detach().flatten() / images * divisor.flatten()
    return torch.cat([per_image, torch.stack([*parts.values()]) * divisor.flatten()[-1]])


def _divided(undivided: Tensor, parts: dict[str, Tensor], scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the total per image and the parts of several batches, from the sum of `_undivided` over the batches."""
    totals, of_parts = torch.split(undivided, [len(scores), len(parts)])
    return (totals / scores).sum(), dict(zip(parts, of_parts / scores[-1], strict=True))


class Accumulation:
    """Counts the steps since the last optimizer step and stores their summed gradients in checkpoints.

    Checkpoints contain unscaled gradients, so that a run can be resumed with another precision.
    """

    def __init__(self) -> None:
        self.steps = 0  # since the last optimizer step
        self._loaded: dict[str, Tensor] = {}

    def state_dict(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> dict[str, Any]:
        """Return the number of steps and the gradients of `graph`, divided by the scale of `scaler`."""
        scale = _scale_of(scaler)
        gradients = {name: parameter.grad for name, parameter in graph.named_parameters() if parameter.grad is not None}
        return {
            "steps": self.steps,
            "gradients": {name: gradient if scale == 1.0 else gradient / scale for name, gradient in gradients.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the number of steps, and keep the gradients until `restore` is called."""
        self.steps, self._loaded = state.get("steps", 0), state.get("gradients", {})

    def restore(self, graph: nn.Module, scaler: torch.amp.GradScaler | None = None) -> None:
        """Set the loaded gradients of all trainable parameters; call it when they are on their device."""
        scale = _scale_of(scaler)
        for name, parameter in graph.named_parameters():
            if name in self._loaded and parameter.requires_grad:
                parameter.grad = self._loaded[name].to(parameter) * scale
        self._loaded = {}

    def reset(self, graph: nn.Module) -> None:
        graph.zero_grad(set_to_none=True)
        self.steps = 0


def _scale_of(scaler: torch.amp.GradScaler | None) -> float:
    """Return the current loss scale: a power of two, so that dividing gradients by it is exact."""
    return 1.0 if scaler is None else float(scaler.get_scale())
