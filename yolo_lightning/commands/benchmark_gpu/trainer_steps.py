"""Real training steps: YOLOModule in a Lightning Trainer, with guarded step, logging, and pinned batches."""

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from yolo_lightning.commands.benchmark.baselines import Variant, convert, kernels_of
from yolo_lightning.commands.benchmark.comparison import synchronize
from yolo_lightning.commands.benchmark.passes import make_module, synthetic_batch
from yolo_lightning.conv import Plan
from yolo_lightning.data.batch import Batch, TrainingFacts
from yolo_lightning.training.recipe import Recipe
from yolo_lightning.utils.tensorboard import Curves

BATCHES = 4
"""Different batches, which repeat."""
WARM_STEPS = 2
NOMINAL_BATCH = 64
LOG_EVERY_STEPS = 10


class TrainerSteps:
    """Training steps of one variant, in as many epochs as `run` is called; other variants can take turns.

    Args:
        variant: Implementation of the convolutions.
        plan: Selects the algorithms of gemm variants.
        device: Device of the training.
        batch_size: Images per step; 64 are accumulated for one optimizer step, as in the recipe.
        image_size: Side of the square input in pixels.
        folder: Folder for the logger.
        options: Further arguments of `YOLOModule`.
    """

    def __init__(
        self,
        variant: Variant,
        plan: Plan,
        device: torch.device,
        *,
        batch_size: int,
        image_size: int,
        folder: Path,
        **options: Any,
    ) -> None:
        self.device, self.variant = device, variant
        self.module = make_module(0, recipe=Recipe(warmup_epochs=0.0, nominal_batch=NOMINAL_BATCH), **options)
        convert(self.module.graph, variant, plan)
        self._data = RepeatedBatches(batch_size, image_size, device)
        self._clock = StepClock(device)
        self._trainer = Trainer(
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            max_epochs=1,
            logger=Curves(folder, name="", version=variant.value),
            log_every_n_steps=LOG_EVERY_STEPS,
            callbacks=[self._clock],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )

    def run(self, steps: int, warm_steps: int = WARM_STEPS, watch: Any = None) -> float:
        """Train `warm_steps + steps` batches and return the mean duration of the last `steps` steps in seconds.

        `watch` is a context manager that is entered for the last `steps` steps, transfer of batches included.
        """
        hide_messages()
        self._data.length = warm_steps + steps
        self._clock.begin(warm_steps, warm_steps + steps, watch)
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        with kernels_of(self.variant):
            self._trainer.fit(self.module, datamodule=self._data)
        return self._clock.seconds / steps


class StepClock(Callback):
    """Measures the duration of some steps of an epoch; the host waits for the device before and after them only."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0
        self._first = self._last = 0
        self._began_s = 0.0
        self._watch: Any = None

    def begin(self, first: int, last: int, watch: Any = None) -> None:
        """Measure the steps from number `first` to before `last`, from 0, of the next epoch."""
        self._first, self._last, self._watch = first, last, watch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._first == 0:
            self._start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == self._last:
            if self._watch is not None:
                self._watch.__exit__(None, None, None)
            synchronize(self.device)
            self.seconds = time.perf_counter() - self._began_s
        if batch_idx + 1 == self._first:
            self._start()

    def _start(self) -> None:
        synchronize(self.device)
        self._began_s = time.perf_counter()
        if self._watch is not None:
            self._watch.__enter__()


class RepeatedBatches(LightningDataModule):
    """A few random batches in page-locked memory, repeated `length` times per epoch."""

    def __init__(self, batch_size: int, image_size: int, device: torch.device) -> None:
        super().__init__()
        self.batch_size, self.length = batch_size, 1
        made = [synthetic_batch(batch_size, image_size, seed) for seed in range(BATCHES)]
        self.batches = [batch.pin_memory() for batch in made] if device.type in ("cuda", "xpu") else made

    def training_facts(self) -> TrainingFacts:
        return TrainingFacts(self.batch_size)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(BatchRing(self.batches, self.length), batch_size=None)


class BatchRing(Dataset[Batch]):
    """A dataset of `length` batches that repeat."""

    def __init__(self, batches: list[Batch], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Batch:
        return self._batches[position % len(self._batches)]


def hide_messages() -> None:
    """Hide Lightning's reports of the hardware and its advice, which repeat for every training."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
