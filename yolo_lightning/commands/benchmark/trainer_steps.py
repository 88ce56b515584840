"""Real training steps: YOLOModule in a Lightning Trainer, with guarded step, logging, and pinned batches."""

import logging
import time
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from yolo_lightning.commands.benchmark.comparison import synchronize
from yolo_lightning.commands.benchmark.conv_variants import Variant, convert
from yolo_lightning.commands.benchmark.passes import make_module, synthetic_batch
from yolo_lightning.commands.benchmark.section import Section
from yolo_lightning.training.nonfinite import GuardSettings
from yolo_lightning.training.recipe import Recipe
from yolo_lightning.utils.tensorboard import Curves

BATCHES = 4
"""Different batches, which repeat; in page-locked memory if there is a GPU."""
WARM_STEPS = 2
NOMINAL_BATCH = 64


class TrainerSteps:
    """Training steps of one variant, in as many epochs as `train` is called; other variants can take turns.

    An optimizer step follows after `nominal_batch` images. A batch is split at most `max_oom_splits` times.
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
        self.module = make_module(
            recipe=Recipe(warmup_epochs=0.0, nominal_batch=nominal_batch),
            guard=GuardSettings(max_oom_splits=max_oom_splits),
        )
        convert(self.module.graph, variant)
        self._clock = StepClock(section.device)
        made = [synthetic_batch(batch_size, section.image_size, seed) for seed in range(BATCHES)]
        self._batches = [batch.pin_memory() for batch in made] if section.device.type in ("cuda", "xpu") else made
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
        self._clock.first, self._clock.last = warm_steps, warm_steps + steps
        size = len(self._batches[0])
        positions: Any = range((warm_steps + steps) * size)
        loader = DataLoader(positions, size, collate_fn=lambda images: self._batches[images[0] // size % BATCHES])
        self._trainer.fit_loop.max_epochs = self._trainer.current_epoch + 1
        self._trainer.fit(self.module, train_dataloaders=loader)
        return dict(self._trainer.callback_metrics)


class StepClock(Callback):
    """Times the steps from number `first`, >= 1, to before `last`; the host waits for the device before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.first, self.last = device, 0.0, 1, 2
        self._began_s = 0.0

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
