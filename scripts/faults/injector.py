"""Callback that calls faults inside the trainer and its loader workers; the configuration of a run names it."""

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from faults.hangs import FaultySource, InsideFault, InsideFaults, Place, start_worker


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

    def state_dict(self) -> dict[str, Any]:
        return {"faults": len(self.faults.faults)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.faults.call(Place.RESUME)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults.call(Place.EPOCH_START, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        self.faults.call(Place.STEP, step)

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
