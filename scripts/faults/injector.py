"""Calls faults inside the trainer or one of its workers. The configuration of a run names it among the callbacks."""

from pathlib import Path
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer

from faults.inside import POISON, FaultySource, FaultyStart, InsideFault, Place, call_due
from yolo_lightning.data.batch import Batch


class FaultyCheckpointIO(CheckpointIO):
    """Something happens while a checkpoint is written.

    Args:
        inner: Writes it.
        faults: What happens.
        folder: Where it is noted.
    """

    def __init__(self, inner: CheckpointIO, faults: list[InsideFault], folder: Path) -> None:
        self.inner, self.faults, self.folder = inner, faults, folder
        self.count = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """As `inner` does."""
        call_due(self.faults, Place.SAVE, self.count, self.folder)
        self.count += 1
        self.inner.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As `inner` does."""
        return self.inner.load_checkpoint(path, *arguments, **options)

    def remove_checkpoint(self, path: Any) -> None:
        """As `inner` does."""
        self.inner.remove_checkpoint(path)


def poison(module: Any) -> None:
    """Make the pixels of the batch at hand NaN on their way into the network."""

    def spoil(graph: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        handle.remove()
        return (inputs[0] * float("nan"), *inputs[1:])

    handle = module.graph.register_forward_pre_hook(spoil)


class Injector(Callback):
    """Calls faults from the hooks of the trainer, and puts them into its loaders and its writer of checkpoints.

    Args:
        faults: Texts of `InsideFault`.
        folder: Where it is noted which of them have happened.
    """

    def __init__(self, faults: list[str], folder: str) -> None:
        self.faults = [InsideFault.parse(text) for text in faults]
        self.folder = Path(folder)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wrap what reads and writes."""
        self._call(Place.SETUP, 0)
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for name, place in (("train_dataloader", Place.FRAME), ("val_dataloader", Place.VALIDATION_FRAME)):
            setattr(data, name, self._faulty(getattr(data, name), place))
        recorded: Any = trainer.strategy.checkpoint_io
        recorded.inner = FaultyCheckpointIO(recorded.inner, self.faults, self.folder)

    def _faulty(self, make_loader: Any, place: Place) -> Any:
        def make() -> Any:
            loader = make_loader()
            frames = loader.dataset.frames
            names = [frames.index.file_name(number) for number in range(len(frames.index))]
            frames.storage = FaultySource(frames.storage, names, place, self.faults, self.folder)
            if place is Place.FRAME:
                loader.worker_init_fn = FaultyStart(loader.worker_init_fn, self.faults, self.folder)
            return loader

        return make

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Before a step."""
        step = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        for fault in self.faults:
            if fault.kind == POISON and fault.happens(Place.STEP, step, self.folder):
                poison(pl_module)
        self._call(Place.STEP, step)

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        """After a step."""
        if trainer.is_last_batch:
            self._call(Place.LAST_BATCH, trainer.current_epoch)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Within a validation."""
        if batch_idx == 0:
            self._call(Place.VALIDATION, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last callback of all: checkpoints are written."""
        self._call(Place.EPOCH_END, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Before the first batch."""
        self._call(Place.EPOCH_START, trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All is trained."""
        self._call(Place.FIT_END, 0)

    def _call(self, place: Place, number: int) -> None:
        call_due([fault for fault in self.faults if fault.kind != POISON], place, number, self.folder)
