"""Callback that calls faults inside the trainer and its loader workers; the configuration of a run names it."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from faults.hangs import KINDS, POISON, SPOIL, FaultySource, InsideFault, InsideFaults, Place, start_worker


class Injector(Callback):
    """Calls faults from the hooks of the trainer, from its loaders and from its checkpoint writer."""

    def __init__(self, faults: list[str], folder: str) -> None:
        self.faults = InsideFaults(tuple(map(InsideFault.parse, faults)), Path(folder))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.faults.call(Place.SETUP)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for name, place in (("train_dataloader", Place.FRAME), ("val_dataloader", Place.VALIDATION_FRAME)):
            setattr(data, name, partial(self._loader, getattr(data, name), place))
        writer: Any = trainer.strategy.checkpoint_io
        save, saved = writer.inner.save_checkpoint, count()

        def save_checkpoint(*arguments: Any, **options: Any) -> None:
            self.faults.call(Place.SAVE, next(saved))
            save(*arguments, **options)

        writer.inner.save_checkpoint = save_checkpoint

    def _loader(self, make: Any, place: Place) -> Any:
        loader = make()
        frames = loader.dataset.frames
        names = [frames.index.file_name(number) for number in range(len(frames.index))]
        frames.storage = FaultySource(frames.storage, names, place, self.faults)
        if place is Place.FRAME:
            loader.worker_init_fn = partial(start_worker, loader.worker_init_fn, self.faults)
        return loader

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the convolutions call faults, if they are computed as the faults demand."""
        module: Any = pl_module
        backend, algorithm = module.convolution.backend, module.convolution.algorithm
        if backend == "native" or algorithm != "table":
            computed = FaultyConvolutions(Place.NATIVE if backend == "native" else Place.KERNEL, self.faults)
            for layer in module.graph.modules():
                if isinstance(layer, nn.Conv2d):
                    layer.register_forward_hook(computed._conv_forward)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults.call(Place.EPOCH_START, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        for kind in self.faults.due(Place.STEP, step):
            poison(pl_module) if kind == POISON else KINDS[kind]()

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        if trainer.is_last_batch:
            self.faults.call(Place.LAST_BATCH, trainer.current_epoch)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if batch_idx == 0:
            self.faults.call(Place.VALIDATION, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults.call(Place.EPOCH_END, trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults.call(Place.FIT_END)


class FaultyConvolutions:
    """Calls the faults of `place` after each convolution of a network, in a function named like that of torch."""

    def __init__(self, place: Place, faults: InsideFaults) -> None:
        self.place, self.faults = place, faults
        self.calls, self.factor = 0, 1.0

    def _conv_forward(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        for kind in self.faults.due(self.place, self.calls):
            if kind in SPOIL:
                self.factor = SPOIL[kind]
            else:
                KINDS[kind]()
        self.calls += 1
        return output if self.factor == 1.0 else output * self.factor


def poison(module: Any) -> None:
    """Make the pixels of the current batch NaN before the network receives them."""

    def spoil(graph: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        handle.remove()
        return (inputs[0] * float("nan"), *inputs[1:])

    handle = module.graph.register_forward_pre_hook(spoil)
