"""Measures time and score of each epoch in the same way in both trainers."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

CLOCK = "clock.json"
MIB = 2**20


def now_s() -> tuple[float, float]:
    """Return wall time and processor time in seconds, after the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


class EpochClock(Callback):
    """Images and seconds of the training part of each epoch, from loading the first batch to the last update.

    `elapsed_processor_s` is the processor time of the process until the end of the epoch, with its validation. Epochs
    with a validation have `map_50` of Ultralytics' metric, computed by the trainer itself.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self._images = 0

    def begin(self) -> None:
        self._images, self._begun_s = 0, now_s()

    def end(self, images: int) -> None:
        wall_s, processor_s = (after - before for after, before in zip(now_s(), self._begun_s, strict=True))
        self.epochs.append(
            {
                "images": images,
                "wall_s": wall_s,
                "processor_s": processor_s,
                "elapsed_processor_s": time.process_time(),
            }
        )

    def add_score(self, map_50: float) -> None:
        """Add the score of the validation after the newest epoch."""
        self.epochs[-1] |= {"map_50": map_50, "elapsed_processor_s": time.process_time()}

    def write(self, folder: Path) -> None:
        """Write the epochs and the peak memory of the process."""
        content: dict[str, Any] = {"epochs": self.epochs}
        content["peak_memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
        if torch.cuda.is_available():
            content["peak_gpu_memory_mib"] = torch.cuda.max_memory_allocated() / MIB
        (folder / CLOCK).write_text(json.dumps(content) + "\n")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.begin()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._images += len(batch)
        if trainer.is_last_batch:  # Lightning validates before the hook of the end of an epoch
            self.end(self._images)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.add_score(float(trainer.callback_metrics["val/ultralytics_map_50"]))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.write(Path(trainer.default_root_dir))


def time_ultralytics(model: Any, threads: int) -> None:
    """Add the clock to a model of Ultralytics, and set the number of threads, which Ultralytics changes on a CPU."""
    clock = EpochClock()
    model.add_callback("on_train_start", lambda trainer: torch.set_num_threads(threads))
    model.add_callback("on_train_epoch_start", lambda trainer: clock.begin())
    model.add_callback("on_train_epoch_end", lambda trainer: clock.end(len(trainer.train_loader.dataset)))
    model.add_callback("on_model_save", lambda trainer: clock.add_score(trainer.metrics["metrics/mAP50(B)"]))
    model.add_callback("on_train_end", lambda trainer: clock.write(Path(trainer.save_dir)))
