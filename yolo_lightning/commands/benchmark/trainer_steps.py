"""Real training steps: YOLOModule in a Lightning Trainer, with guarded step, logging, and pinned batches."""

import logging
import time
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader

from yolo_lightning.commands.benchmark.comparison import synchronize
from yolo_lightning.commands.benchmark.passes import make_module, synthetic_batch
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.commands.benchmark.variants import Variant, convert
from yolo_lightning.data.batch import TrainingFacts
from yolo_lightning.utils.tensorboard import Curves

BATCHES = 4
"""Different batches, which repeat."""
WARM_STEPS = 2
NOMINAL_BATCH = 64


class TrainerSteps:
    """Training steps of one variant, in as many epochs as `train` is called; other variants can take turns.

    An optimizer step follows after `nominal_batch` images. `max_oom_splits` is the argument of `YOLOModule`.
    """

    def __init__(
        self,
        section: Section,
        variant: Variant,
        batch_size: int,
        nominal_batch: int = NOMINAL_BATCH,
        max_oom_splits: int = 0,
    ) -> None:
        for name in ("lightning.pytorch", "lightning.fabric"):  # reports of the hardware and advice
            logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=r"lightning\.")
        self.module = make_module(warmup_epochs=0.0, nominal_batch=nominal_batch, max_oom_splits=max_oom_splits)
        convert(self.module.graph, variant)
        self._clock = StepClock(section.device)
        self._data = RepeatedBatches(batch_size, section)
        self._trainer = Trainer(
            accelerator=section.device.type,
            devices=1 if section.device.index is None else [section.device.index],
            precision="bf16-mixed" if section.precision is torch.bfloat16 else "32-true",
            max_epochs=1,
            logger=Curves(section.folder, name="", version=variant.value),
            log_every_n_steps=10,
            callbacks=[self._clock],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=section.folder,
        )

    def time(self, steps: int) -> float:
        """Return the mean duration of steps after a warm-up in seconds, transfer of batches included."""
        self.train(steps, WARM_STEPS)
        return self._clock.seconds / steps

    def train(self, steps: int, warm_steps: int = 0) -> dict[str, torch.Tensor]:
        """Train `warm_steps + steps` batches, the last `steps` of which are timed; return the logged values."""
        self._data.length = self._clock.last = warm_steps + steps
        self._clock.first = warm_steps
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        self._trainer.fit(self.module, datamodule=self._data)
        return dict(self._trainer.callback_metrics)


class StepClock(Callback):
    """Times the steps from number `first` to before `last`; the host waits for the device only before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.first, self.last = device, 0.0, 0, 1
        self._began_s = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.first == 0:
            self._began_s = self._now_s()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == self.last:
            self.seconds = self._now_s() - self._began_s
        if batch_idx + 1 == self.first:
            self._began_s = self._now_s()

    def _now_s(self) -> float:
        synchronize(self.device)
        return time.perf_counter()


class RepeatedBatches(LightningDataModule):
    """A few random batches in page-locked memory, repeated `length` times per epoch."""

    def __init__(self, batch_size: int, section: Section) -> None:
        super().__init__()
        self.batch_size, self.length = batch_size, 1
        made = [synthetic_batch(batch_size, section.image_size, seed) for seed in range(BATCHES)]
        self.batches = [batch.pin_memory() for batch in made] if section.device.type in ("cuda", "xpu") else made

    def training_facts(self) -> TrainingFacts:
        return TrainingFacts(self.batch_size)

    def train_dataloader(self) -> DataLoader[Any]:
        repeated: Any = [self.batches[step % BATCHES] for step in range(self.length)]
        return DataLoader(repeated, batch_size=None)
