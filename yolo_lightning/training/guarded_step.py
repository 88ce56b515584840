"""Gradients of one batch, summed over its parts and over the ranks, and added entirely or not at all.

A non-finite loss, or an out-of-memory error within a batch, leaves gradients and running statistics unchanged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from yolo_lightning.data.batch import Batch, in_parts
from yolo_lightning.utils.accelerator import free_cached_memory, is_out_of_memory, synchronize
from yolo_lightning.utils.activity import Activity, during
from yolo_lightning.utils.stop_signals import request

ONE_TO_ONE = "one2one_"
"""Part of the names of the parameters which the loss of the one-to-one branch changes; that loss changes no others."""

EXCHANGED = 20
"""Numbers that the ranks exchange after their backward passes: counts, stop signals, target scores and losses."""
ANOTHER_RANK = "out of memory in another rank"

Sum = Callable[[Tensor], Tensor]
"""Sum of a tensor over all ranks."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one batch; with several ranks those of the global batch, equal in all ranks."""

    total: Tensor  # 0-d, detached, summed over the images
    parts: dict[str, Tensor]  # 0-d each, detached, per image
    is_finite: bool  # whether loss and running statistics are finite in all ranks; otherwise the batch was skipped


@dataclass(frozen=True, slots=True)
class PartLoss:
    """Loss of a part of a batch, of which `totals` can be differentiated."""

    totals: Tensor  # summed over the images: 0-d, or `(2,)` for a head with a one-to-many and a one-to-one branch
    named: dict[str, Tensor]  # named parts of the loss per image, of the last branch
    scores: Tensor  # sum of target scores, shaped as `totals`; all losses are divided by it, or by 1 if it is smaller


@dataclass(slots=True)
class LossSums:
    """Losses, summed over the parts of a batch and over the ranks, multiplied by the scores that they were divided by.

    The sums do not contain the parts after a non-finite loss.
    """

    images: float  # of all ranks
    is_finite: bool = True
    names: Sequence[str] = ()  # of the parts of the loss
    scores: Tensor = field(default_factory=lambda: torch.zeros(1))  # one per branch
    losses: Tensor = field(default_factory=lambda: torch.zeros(1))  # one total per branch, then the named ones

    def add(self, loss: PartLoss, images: int) -> None:
        """Add the loss of a part with `images` images."""
        scores = loss.scores.flatten()
        divisor = scores.clamp(min=1)
        totals = loss.totals.detach().flatten() / images * divisor
        losses = torch.cat([totals, torch.stack([*loss.named.values()]) * divisor[-1]])
        self.names = tuple(loss.named)
        self.scores = self.scores.to(scores) + scores
        self.losses = self.losses.to(losses) + losses


class GuardedStep:
    """Forward and backward passes of a batch that fits into memory entirely or in parts.

    After an out-of-memory error this batch and all later ones are computed in parts of half as many images. The
    gradients of the parts are weighted and summed, so that they equal those of the whole batch, except that batch
    normalization uses the statistics of the parts. The shares of several ranks are summed to the gradients of the
    global batch in the same way, after the backward passes of all parts: the caller prevents that
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
        self.max_oom_splits = max_oom_splits
        self.oom_splits = oom_splits
        self.images_at_once: int | None = None  # largest number of images per pass after out-of-memory errors
        self.splits = 0  # halvings that gave `images_at_once`
        self._first_images: int | None = None  # largest number of images per pass by `oom_splits`
        self._sum_over_ranks: Sum | None = None
        self._is_synchronized = False
        self.parameters: list[nn.Parameter] = []  # of the network; a search in each step would take longer
        self._branches: list[list[nn.Parameter]] = []  # parameters of the one-to-many and of the one-to-one branch
        self._buffers: list[list[Tensor]] = []  # by dtype: a fused copy supports tensors of one dtype only
        self._copies: list[list[Tensor]] = []
        self._statistics: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {"images_at_once": self.images_at_once, "splits": self.splits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.images_at_once = state.get("images_at_once")
        self.splits = state.get("splits", 0)

    def prepare(self, graph: nn.Module, batch_size: int | None = None, summed: Sum | None = None) -> None:
        """Register the tensors that a step changes; call it when they are on the device of the training.

        Args:
            graph: The network.
            batch_size: Images per step and rank, which `oom_splits` halves.
            summed: Returns the sum of a floating-point tensor over all ranks by a collective call, possibly in place;
                None for one rank.
        """
        self._sum_over_ranks = summed
        self._first_images = None
        if batch_size and self.oom_splits:
            self._first_images = -(-batch_size // 2**self.oom_splits)
        self._is_synchronized = any(isinstance(layer, nn.SyncBatchNorm) for layer in graph.modules())
        self.parameters = list(graph.parameters())
        one_to_one = {id(parameter) for name, parameter in graph.named_parameters() if ONE_TO_ONE in name}
        self._branches = [
            [parameter for parameter in self.parameters if id(parameter) not in one_to_one],
            [parameter for parameter in self.parameters if id(parameter) in one_to_one],
        ]
        self._buffers = _by_dtype(graph.buffers())
        self._copies = [[torch.empty_like(buffer) for buffer in buffers] for buffers in self._buffers]
        self._statistics = [buffer for buffer in graph.buffers() if buffer.is_floating_point()]

    def sum_gradients(
        self, batch: Batch, loss_of: Callable[[Batch], PartLoss], backward: Callable[[Tensor], None]
    ) -> Losses:
        """Add the gradients of a batch to those of earlier batches.

        After an exception, also an interrupt, gradients and running statistics are those before the call: a checkpoint
        that is saved then is resumed with this batch.

        Args:
            batch: The batch on the device; with several ranks the share of this rank.
            loss_of: Computes the forward pass and the loss of a part of the batch. After an error, nothing may refer to
                tensors of the pass: smaller parts need their memory.
            backward: Computes the gradients of a loss.

        Returns:
            The losses. If they are not finite, gradients and running statistics are those before the call.

        Raises:
            RuntimeError: If the memory is not sufficient and the batch cannot be split further.
        """
        earlier = [parameter.grad for parameter in self.parameters]
        _copy(self._buffers, self._copies)
        while True:
            for parameter in self.parameters:
                parameter.grad = None
            sums = LossSums(images=len(batch))
            try:
                losses = self._forward_backward(batch, sums, loss_of, backward)
            except BaseException as error:
                if not isinstance(error, RuntimeError) or not is_out_of_memory(error):
                    with suppress(RuntimeError):  # of a device that no longer works
                        self._restore(earlier)
                    raise
                images = len(batch)
                if self._sum_over_ranks is not None and not self._is_synchronized:
                    images = self._exchange(self._sum_over_ranks, sums, has_failed=True)
                self._restore(earlier)
                if not self._split(images, str(error)):
                    raise
            else:
                images = 0
                if self._sum_over_ranks is not None:
                    images = self._exchange(self._sum_over_ranks, sums, has_failed=False)
                if not images:
                    break
                self._restore(earlier)
                if not self._split(images, ANOTHER_RANK):
                    raise torch.OutOfMemoryError(ANOTHER_RANK)
            free_cached_memory(self.parameters[0].device)  # the tensors of the passes were freed with the error
        if losses is None:
            losses = self._weight_gradients(sums, len(batch))
        if losses.is_finite:
            self._add(earlier)
        else:
            self._restore(earlier)
        return losses

    def are_finite(self, total: Tensor) -> bool:
        """Whether the loss and all running statistics are finite, with one synchronization of the device."""
        norms = torch._foreach_norm(self._statistics, float("inf")) if self._statistics else []
        with during(Activity.DEVICE_WAIT):
            return bool(torch.stack([total.detach(), *(norm.to(total) for norm in norms)]).isfinite().all())

    def _forward_backward(
        self,
        batch: Batch,
        sums: LossSums,
        loss_of: Callable[[Batch], PartLoss],
        backward: Callable[[Tensor], None],
    ) -> Losses | None:
        """Compute the gradients of each part, until a loss is not finite.

        The losses of a batch that is neither split nor shared are returned; otherwise they are added to `sums`.
        """
        largest_part = self._largest_part(len(batch))
        is_whole = self._sum_over_ranks is None and largest_part == len(batch)
        losses: Losses | None = None
        for part in in_parts(batch, largest_part):
            part_loss = loss_of(part)
            loss = part_loss.totals.sum()
            sums.is_finite = self.are_finite(loss)
            if is_whole:
                losses = Losses(loss.detach(), part_loss.named, sums.is_finite)
            else:
                sums.add(part_loss, len(part))
                loss = (part_loss.totals / len(part) * part_loss.scores.clamp(min=1)).sum()
            if not sums.is_finite:
                break
            del part_loss  # and the graph of the pass, which the backward pass frees
            backward(loss)
            del loss
        return losses

    def _largest_part(self, images: int) -> int:
        """Return the largest number of images per pass for a batch of `images`."""
        return min(images, self.images_at_once or images, self._first_images or images)

    def _split(self, images: int, message: str) -> bool:
        """Halve the number of images computed at once after an out-of-memory error; return whether this is allowed.

        `images` is the mean over the ranks: all ranks halve to the same number. With normalization that is synchronized
        over the ranks, the ranks would wait for each other within a pass, and unequal numbers of parts would wait
        forever.
        """
        at_once = self._largest_part(images)
        splits = max(self.splits, self.oom_splits)
        if self._is_synchronized or splits >= self.max_oom_splits or at_once < 2:
            return False
        self.splits = splits + 1
        self.images_at_once = -(-at_once // 2)
        first_line, _, _ = message.partition("\n")
        rank_zero_warn(
            f"out of memory with {at_once} of {images} images: from now on {self.images_at_once} images are computed "
            f"at once and their gradients summed ({first_line})"
        )
        return True

    def _exchange(self, sum_over_ranks: Sum, sums: LossSums, *, has_failed: bool) -> int:
        """Sum gradients and `sums` over the ranks; or return the mean number of images if a rank ran out of memory.

        Ranks with synchronized normalization wait within a pass, not here.
        """
        # Of constant size: a rank that fails in its first pass does not know the number of branches and losses.
        record = torch.zeros(EXCHANGED, device=self.parameters[0].device)
        counts = record.new_tensor([has_failed, not sums.is_finite, 1, sums.images, *request.counts()])
        sizes = [len(counts), len(sums.scores), len(sums.losses)]
        record[: sum(sizes)] = torch.cat([counts, sums.scores.to(record), sums.losses.to(record)])
        synchronize(record.device)  # the wait for the device ends before the wait for the other ranks begins
        with during(Activity.EXCHANGE):
            record = sum_over_ranks(record)
            failures, nonfinite, ranks, sums.images, *signals = record[: len(counts)].tolist()
        request.agree(signals)
        request.is_exchanged = True
        if failures:
            return -(-int(sums.images) // int(ranks))
        sums.is_finite = not nonfinite
        _, sums.scores, sums.losses = torch.split(record[: sum(sizes)], sizes)
        if sums.is_finite:
            self._sum_gradients_over_ranks(sum_over_ranks)
        return 0

    def _sum_gradients_over_ranks(self, sum_over_ranks: Sum) -> None:
        """Replace the gradients by their sums over all ranks; a rank without a gradient contributes zeros."""
        gradients = []
        for parameter in self.parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for group in _by_dtype(gradients):
            flat = sum_over_ranks(torch.cat([gradient.flatten() for gradient in group]))
            pieces = torch.split(flat, [gradient.numel() for gradient in group])
            sums = [piece.view_as(gradient) for piece, gradient in zip(pieces, group, strict=True)]
            torch._foreach_copy_(group, sums)

    def _weight_gradients(self, sums: LossSums, images: int) -> Losses:
        """Divide the gradients of each branch by its target scores, and return the losses of a split or shared batch.

        `images` is the number of images of this rank.
        """
        scores = sums.scores.clamp(min=1)
        if sums.is_finite:
            for parameters, branch_scores in zip(self._branches, (scores[0], scores[-1]), strict=True):
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                if gradients:
                    torch._foreach_mul_(gradients, sums.images / branch_scores)
        totals, named = torch.split(sums.losses, [len(scores), len(sums.names)])
        parts = dict(zip(sums.names, named / scores[-1], strict=True))
        return Losses((totals / scores).sum() * images, parts, sums.is_finite)

    def _add(self, earlier: Sequence[Tensor | None]) -> None:
        """Add the gradients to the earlier ones."""
        totals = []
        gradients = []
        for parameter, total in zip(self.parameters, earlier, strict=True):
            if total is None:
                continue
            if parameter.grad is not None:
                totals.append(total)
                gradients.append(parameter.grad)
            parameter.grad = total
        if totals:
            torch._foreach_add_(totals, gradients)

    def _restore(self, earlier: Sequence[Tensor | None]) -> None:
        """Restore gradients and buffers."""
        for parameter, gradient in zip(self.parameters, earlier, strict=True):
            parameter.grad = gradient
        _copy(self._copies, self._buffers)


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


@torch.no_grad()
def _copy(sources: list[list[Tensor]], targets: list[list[Tensor]]) -> None:
    for target, source in zip(targets, sources, strict=True):
        torch._foreach_copy_(target, source)
