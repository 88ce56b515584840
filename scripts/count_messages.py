"""Count the collective operations of the training steps of a fit with several ranks, and the bytes of their tensors.

    PYTHONPATH=scripts torchrun --standalone --nproc-per-node 2 -m yolo_lightning fit --config CONFIG \
      --trainer.accelerator cpu --trainer.devices 2 --trainer.strategy ddp \
      --trainer.callbacks+=count_messages.CountMessages

The first rank prints one line at the end of the fit. A step lasts until the end of the hooks `on_train_batch_end`, so
that a checkpoint after a step counts for the next one. The line describes the most frequent kind of step.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACE = "c10d"  # of PyTorch's collective operations


class Messages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Counts collective operations and the bytes of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        if operator.namespace == NAMESPACE:
            self.names.append(operator.overloadpacket.__name__.rstrip("_"))
            tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return operator(*arguments, **(options or {}))


class CountMessages(Callback):
    """Prints the collective operations of a training step at the end of a fit."""

    def __init__(self) -> None:
        self._steps: Counter[tuple[str, int]] = Counter()
        self._messages: Messages | None = None
        self._mode = ExitStack()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        messages = self._end()
        if messages is not None:
            names = ", ".join(f"{count} {name}" for name, count in sorted(Counter(messages.names).items()))
            self._steps[names, messages.bytes] += 1
        if not trainer.is_last_batch:
            self._begin()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and not trainer.is_last_batch:
            self._begin()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            ((names, size), count), *_ = self._steps.most_common(1)
            total = sum(self._steps.values())
            print(f"collective operations of a step: {names}; {size:,} bytes; in {count} of {total} steps", flush=True)

    def _begin(self) -> None:
        self._messages = Messages()
        self._mode.enter_context(self._messages)

    def _end(self) -> Messages | None:
        messages = self._messages
        self._messages = None
        self._mode.close()
        return messages
