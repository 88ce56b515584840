"""Lightning with `ModelCheckpoint` every N steps and automatic resume from its newest checkpoint.

https://lightning.ai/docs/pytorch/stable/common/checkpointing_intermediate.html: `every_n_train_steps`, `save_last`;
https://lightning.ai/docs/pytorch/stable/common/trainer.html: `fit(ckpt_path="last")` resumes, and starts from the
beginning where no checkpoint exists.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader
from ultralytics.utils.loss import v8DetectionLoss

from race.callback import RaceHook
from race.peers import yolo
from race.systems import Training


class Detector(LightningModule):
    """YOLOv8n with automatic optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = yolo.network()
        self.criterion = v8DetectionLoss(self.graph)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = yolo.total_loss(self.criterion, self.graph(batch["img"]), batch)
        self.log("train/loss", loss.detach(), batch_size=len(batch["img"]))
        return loss

    def configure_optimizers(self) -> Any:
        return yolo.optimizer(self.parameters())


def main() -> None:
    """Train, or resume."""
    training = Training.read()
    torch.set_num_threads(1)
    seed_everything(training.seed, workers=True)
    checkpoint = ModelCheckpoint(training.run_folder, every_n_train_steps=training.interval, save_last=True)
    loader = DataLoader(
        yolo.Frames(training), training.batch, shuffle=True, num_workers=training.workers, collate_fn=yolo.collate
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=training.epochs,
        default_root_dir=training.run_folder,
        callbacks=[checkpoint, RaceHook()],
        log_every_n_steps=1,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Detector(), loader, ckpt_path="last", weights_only=False)


if __name__ == "__main__":
    main()
