"""Statistics of batch normalization in the validations of a fit, and in the checkpoints that they score."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from tests.callbacks.tiny_training import tiny_trainer
from tests.helpers.data_module import data_module
from tests.helpers.networks import module_of
from yolo_lightning.callbacks import EMA, BestCheckpoint, LastCheckpoint
from yolo_lightning.model.graph import network_input
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.normalization_statistics import recompute_statistics

STOP_AFTER = 6


class Watch(Callback):
    """Records the images of the epoch and the validated graph; can interrupt the training."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.images: list[Tensor] = []
        self.graph: Any = None
        self.stop_after = stop_after

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.images = [*(self.images if batch_idx else []), batch.images.clone()]
        if trainer.fit_loop.total_batch_idx + 1 == self.stop_after:
            raise KeyError(self.stop_after)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, YOLOModule)
        self.graph = deepcopy(pl_module.graph)


@pytest.fixture
def fit(tmp_path: Path, look_alike: Path, index_root: Path) -> Any:
    """Train two epochs; return the module and what was recorded."""

    def run(folder: str, *, stop_after: int | None = None, resume: bool = False, **options: Any) -> Any:
        data = data_module(str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, num_workers=0)
        torch.manual_seed(0)
        watch = Watch(stop_after)
        module = module_of(**({"backend": "native", "nominal_batch": 4, "warmup_epochs": 0.0} | options))
        root = tmp_path / folder
        callbacks = EMA(tau=2.0), watch, BestCheckpoint("val/map"), LastCheckpoint(1, keep=99)
        trainer = tiny_trainer(root, *callbacks, epochs=2, limit_val_batches=1)
        last = root / "checkpoints" / "last.ckpt"
        try:
            trainer.fit(module, datamodule=data, ckpt_path=last if resume else None)
        except KeyError:
            assert stop_after is not None
        return module, watch, torch.load(last, weights_only=True)["state_dict"]

    return run


def differing(state: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    return {name.rsplit(".", 1)[1] for name in state if not torch.equal(state[name], other[name])}


def of_graph(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("graph."): tensor for name, tensor in state.items() if name.startswith("graph.")}


def test_validated_and_saved_statistics_are_those_of_the_newest_batches(fit: Any) -> None:
    _, watch, saved = fit("run", statistics_batches=2)
    reference = deepcopy(watch.graph)
    assert len(watch.images) > 2
    recompute_statistics(reference, [network_input(images) for images in watch.images[-2:]])
    assert not differing(watch.graph.state_dict(), reference.state_dict())
    assert not differing(of_graph(saved), reference.state_dict())


@pytest.mark.whole_run
def test_weights_are_those_of_a_training_without_recomputation(fit: Any) -> None:
    _, watch, saved = fit("run", statistics_batches=8)
    _, plain, exponential = fit("plain", statistics_batches=0)
    assert differing(saved, exponential) == {"running_mean", "running_var"}
    averages = [layer for layer in plain.graph.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert all(layer.training is False for layer in averages)
    assert differing(watch.graph.state_dict(), plain.graph.state_dict()) == {"running_mean", "running_var"}


@pytest.mark.whole_run
def test_resumed_fit_recomputes_from_the_batches_before_the_interruption(fit: Any) -> None:
    _, _, whole = fit("whole")
    fit("cut", stop_after=STOP_AFTER)
    _, watch, resumed = fit("cut", resume=True)
    assert len(watch.images) < 4
    assert not differing(resumed, whole)
