"""Gradients of one batch, summed over its parts and over the ranks, and added entirely or not at all.

A non-finite loss, or an out-of-memory error within a batch, leaves gradients and running statistics unchanged.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts
from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory
from yolo_lightning.utils.activity import Activity, during

ONE_TO_ONE = "one2one_"
"""Part of the names of the parameters which the loss of the one-to-one branch changes; that loss changes no others."""

EXCHANGED = 16
"""Numbers that the ranks exchange after their backward passes: counts, target scores and losses."""
ANOTHER_RANK = "out of memory in another rank"

Sum = Callable[[Tensor], Tensor]
"""Sum of a tensor over all ranks."""


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
    global batch in the same way, once per attempt and after the backward passes of all parts: the caller prevents that
    `DistributedDataParallel` sums them too. First the ranks exchange their failures: if one of them has run out of
    memory, in the forward or in the backward pass, all of them compute the batch again in smaller parts.

    `oom_splits` halvings apply from the beginning. Out-of-memory errors add halvings up to `max_oom_splits` in total,
    which are part of a checkpoint; the next error is fatal.

    With mixed precision, the caller multiplies the loss by the scale of the `GradScaler`, and the gradients that this
    class sums, weights and restores are scaled ones. The scale is a power of two and changes at optimizer steps only,
    so that gradients of several steps can be summed. The losses are unscaled. A gradient that overflows in float16 is
    no reason to skip a batch here: the scaler skips the optimizer step and halves the scale. bfloat16 needs no scaler.
    """

    def __init__(self, max_oom_splits: int = 3, oom_splits: int = 0) -> None:
        self.max_oom_splits, self.oom_splits = max_oom_splits, oom_splits
        self.images_at_once: int | None = None  # largest number of images per pass after out-of-memory errors
        self.splits = 0  # halvings that gave `images_at_once`
        self.summed: Sum | None = None
        self.is_synchronized = False
        self.parameters: list[nn.Parameter] = []
        self.one_to_one: set[int] = set()  # ids of parameters, see `ONE_TO_ONE`
        self._first_images: int | None = None  # largest number of images per pass by `oom_splits`
        self._buffers: list[list[Tensor]] = []  # by dtype: a fused copy supports tensors of one dtype only
        self._copies: list[list[Tensor]] = []
        self._statistics: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {"images_at_once": self.images_at_once, "splits": self.splits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.images_at_once, self.splits = state.get("images_at_once"), state.get("splits", 0)

    def prepare(self, graph: nn.Module, batch_size: int | None = None, summed: Sum | None = None) -> None:
        """Register the tensors that a step changes; call it when they are on the device of the training.

        Args:
            graph: The network.
            batch_size: Images per step and rank, which `oom_splits` halves.
            summed: Returns the sum of a floating-point tensor over all ranks by a collective call, possibly in place;
                None for one rank.
        """
        self.summed = summed
        self._first_images = -(-batch_size // 2**self.oom_splits) if batch_size and self.oom_splits else None
        self.is_synchronized = any(isinstance(layer, nn.SyncBatchNorm) for layer in graph.modules())
        self.parameters = list(graph.parameters())
        self._buffers = _by_dtype(graph.buffers())
        self._copies = [[torch.empty_like(buffer) for buffer in buffers] for buffers in self._buffers]
        self._statistics = [buffer for buffer in graph.buffers() if buffer.is_floating_point()]
        self.one_to_one = {id(one) for name, one in graph.named_parameters() if ONE_TO_ONE in name}

    def attempts(self, batch: Batch) -> Iterator["BatchAttempt"]:
        """Yield attempts at `batch`, which is on the device, until no rank runs out of memory.

        With several ranks, `batch` is the share of this rank.
        """
        attempt = BatchAttempt(self, batch)
        yield attempt
        while attempt.ran_out_of_memory:
            attempt = BatchAttempt(self, batch, is_retry=True)
            yield attempt

    def largest_part(self, images: int) -> int:
        """Return the largest number of images per pass for a batch of `images`."""
        return min(images, self.images_at_once or images, self._first_images or images)

    def split(self, images: int, error: BaseException | None) -> bool:
        """Halve the number of images computed at once after an out-of-memory error; return whether this is allowed.

        `images` is the mean over the ranks and `error` that of this rank: all ranks halve to the same number. With
        normalization that is synchronized over the ranks, they would wait for each other within a pass, and unequal
        numbers of parts would wait forever.
        """
        at_once, splits = self.largest_part(images), max(self.splits, self.oom_splits)
        if self.is_synchronized or splits >= self.max_oom_splits or at_once < 2:
            return False
        self.splits, self.images_at_once = splits + 1, -(-at_once // 2)
        reason = str(error or ANOTHER_RANK).partition("\n")[0]
        rank_zero_warn(
            f"out of memory with {at_once} of {images} images: from now on {self.images_at_once} images are computed "
            f"at once and their gradients summed ({reason})"
        )
        return True

    def sum_gradients(self, summed: Sum) -> None:
        """Replace the gradients by their sums over all ranks; a rank without a gradient contributes zeros."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for gradients in _by_dtype(one.grad for one in trained if one.grad is not None):
            flat = summed(torch.cat([gradient.flatten() for gradient in gradients]))
            pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
            sums = [piece.view_as(gradient) for piece, gradient in zip(pieces, gradients, strict=True)]
            torch._foreach_copy_(gradients, sums)

    def save_buffers(self) -> None:
        _copy(self._buffers, self._copies)

    def restore_buffers(self) -> None:
        _copy(self._copies, self._buffers)

    def are_finite(self, total: Tensor) -> bool:
        """Whether the loss and all running statistics are finite, with one synchronization of the device."""
        norms = torch._foreach_norm(self._statistics, float("inf")) if self._statistics else []
        with during(Activity.DEVICE_WAIT):
            return bool(torch.stack([total.detach(), *(norm.to(total) for norm in norms)]).isfinite().all())


class BatchAttempt:
    """Context for the passes over one batch. Leaves gradients and running statistics unchanged unless they succeed.

    An out-of-memory error that splits the batch ends the context without an exception. The weights of parts with fewer
    images, and of the shares of several ranks, depend on the scores of all parts and are applied to the gradients.

    Attributes:
        is_finite: Whether loss and running statistics are finite so far.
        losses: Losses of the batch, after the context.
        ran_out_of_memory: Whether the batch has to be computed again in smaller parts.
    """

    def __init__(self, step: GuardedStep, batch: Batch, *, is_retry: bool = False) -> None:
        self.step, self.batch, self._is_retry = step, batch, is_retry
        self.is_finite, self.ran_out_of_memory = True, False
        self.losses: Losses
        self._is_split = step.summed is not None or step.largest_part(len(batch)) < len(batch)
        self._earlier: list[Tensor | None] = []
        self._scores, self._undivided = torch.zeros(()), torch.zeros(())
        self._parts: dict[str, Tensor] = {}

    def __enter__(self) -> Self:
        if self._is_retry:  # the caller has released the tensors of the failed attempt
            free_cached_memory(self.step.parameters[0].device)
        self._earlier = [parameter.grad for parameter in self.step.parameters]
        for parameter in self.step.parameters:
            parameter.grad = None
        self.step.save_buffers()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if error is not None and not (isinstance(error, RuntimeError) and is_out_of_memory(error)):
            return False
        images = self._finish(failed=error is not None)
        if not images and self.is_finite:
            self._add_earlier()
        else:
            self._undo()
        if images:
            self.ran_out_of_memory = self.step.split(images, error)
            if error is None and not self.ran_out_of_memory:
                raise torch.OutOfMemoryError(ANOTHER_RANK)
        return self.ran_out_of_memory

    def __iter__(self) -> Iterator[Batch]:
        """Yield the parts of the batch; none after a non-finite loss."""
        for part in in_parts(self.batch, self.step.largest_part(len(self.batch))):
            if self.is_finite:
                yield part

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
        self.is_finite, self._parts = self.step.are_finite(total), parts
        if not self._is_split:
            self.losses = Losses(total.detach(), parts, self.is_finite)
            return total
        divisor = scores.clamp(min=1)
        # Totals per image and parts, multiplied by the scores that they were divided by.
        per_image = totals.detach().flatten() / len(part) * divisor.flatten()
        undivided = torch.cat([per_image, torch.stack([*parts.values()]) * divisor.flatten()[-1]])
        self._scores, self._undivided = self._scores.to(scores) + scores, self._undivided.to(undivided) + undivided
        loss: Tensor = (totals / len(part) * divisor).sum()
        return loss

    def _finish(self, *, failed: bool) -> int:
        """Weight the gradients and set `losses`; or return the number of images if a rank ran out of memory, else 0."""
        summed, own, images = self.step.summed, len(self.batch), float(len(self.batch))
        # Ranks with synchronized normalization wait within a pass, not here.
        if not self._is_split or (failed and (summed is None or self.step.is_synchronized)):
            return own if failed else 0
        scores, undivided = self._scores.flatten(), self._undivided
        if summed is not None:
            # Of constant size: a rank that fails in its first pass does not know the number of branches and losses.
            record = torch.zeros(EXCHANGED, device=self.step.parameters[0].device)
            counts = record.new_tensor([failed, not self.is_finite, 1, own])
            known = torch.cat([counts, scores.to(record), undivided.flatten().to(record)])
            record[: len(known)] = known
            with during(Activity.DEVICE_WAIT):
                record = summed(record)
                failures, nonfinite, ranks, images = record[:4].tolist()
            if failures:
                return -(-int(images) // int(ranks))
            self.is_finite = not nonfinite
            _, scores, undivided = torch.split(record[: len(known)], [4, len(scores), len(undivided)])
            if self.is_finite:
                with during(Activity.DEVICE_WAIT):
                    self.step.sum_gradients(summed)
        scores = scores.clamp(min=1)
        if self.is_finite:
            for branch, factor in ((False, images / scores[0]), (True, images / scores[-1])):
                found = [one.grad for one in self.step.parameters if (id(one) in self.step.one_to_one) == branch]
                if gradients := [gradient for gradient in found if gradient is not None]:
                    torch._foreach_mul_(gradients, factor)
        totals, of_parts = torch.split(undivided, [len(scores), len(self._parts)])
        parts = dict(zip(self._parts, of_parts / scores[-1], strict=True))
        self.losses = Losses((totals / scores).sum() * own, parts, self.is_finite)
        return 0

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


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    found: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.dtype, []).append(tensor)
    return list(found.values())


@torch.no_grad()
def _copy(sources: list[list[Tensor]], targets: list[list[Tensor]]) -> None:
    for target, source in zip(targets, sources, strict=True):
        torch._foreach_copy_(target, source)
