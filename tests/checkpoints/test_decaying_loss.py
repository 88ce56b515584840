"""yolo26, whose losses change their weights with every epoch, under MuSGD: resumed within an epoch, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.parity.training_twins import Frames, Weights, initial_graph, make_trainer, random_batches, state
from yolo_lightning.callbacks import EMA
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.recipe import Recipe

pytestmark = pytest.mark.whole_run


class Watch(Callback):
    """Saves after the third step, and keeps the raw weights and the weight of the loss of the last epoch."""

    def __init__(self, file: Path) -> None:
        self.file, self.weights, self.share = file, Weights(), 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if pl_module._steps == 3 and not self.file.exists():
            trainer.save_checkpoint(self.file)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.weights, self.share = state(pl_module.graph), pl_module.detection_loss._criterion.o2m


def test_resumed_training_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    batches = random_batches(1) * 2  # equal ones: Lightning begins the epoch of a plain loader again
    found = []
    for checkpoint in (None, tmp_path / "third.ckpt"):
        module = YOLOModule("yolo26n", recipe=Recipe(nominal_batch=12, warmup_epochs=1.0, optimizer="MuSGD", lr0=0.001))
        module.graph.load_state_dict(initial_graph("yolo26n").state_dict())
        watch = Watch(tmp_path / "third.ckpt")
        make_trainer(tmp_path, 3, watch, EMA()).fit(module, Frames(batches), ckpt_path=checkpoint)
        assert watch.share == pytest.approx(0.1)
        found.append((watch.weights, state(module.graph)))
    for own, other in zip(*found, strict=True):
        assert all(torch.equal(own[name], other[name]) for name in other)
