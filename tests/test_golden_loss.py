"""Twenty steps of the tiny configuration reproduce a stored loss curve. A change of the maths fails.

After such a change: `PYTHONPATH=scripts python -m tests.test_golden_loss > tests/golden_loss.txt`, and say why in
the CHANGELOG.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from synthetic import draw_dataset

from tests.helpers.data_module import data_module
from yolo_lightning.callbacks import EMA
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.recipe import Recipe

GOLDEN = Path(__file__).with_name("golden_loss.txt")
STEPS = 20


class Losses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: object) -> None:
        self.values.append(float(trainer.callback_metrics["train/loss"]))


class PortableWeights(Callback):
    """Draws the first weights with NumPy: those of PyTorch differ by a rounding between processors."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        generator = np.random.default_rng(0)
        for parameter in pl_module.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                bound = parameter[0].numel() ** -0.5
                parameter.data = torch.from_numpy(generator.uniform(-bound, bound, parameter.shape))


def train(root: Path, index_root: Path, run: Path) -> list[float]:
    seed_everything(0)
    losses = Losses()
    trainer = Trainer(
        accelerator="cpu",
        precision="64-true",  # rounding differs between processors; in float64 too little to show
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=run,
        callbacks=[losses, PortableWeights(), EMA()],
    )
    data = data_module(
        str(root), index_root=str(index_root), image_size=64, batch_size=4, loader=LoaderSettings(num_workers=0)
    )
    trainer.fit(
        YOLOModule(convolution=ConvolutionSettings(backend="gemm"), recipe=Recipe(nominal_batch=8, warmup_epochs=1.0)),
        data,
    )
    return losses.values


def test_twenty_steps_reproduce_the_stored_losses(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    expected = [float(line) for line in GOLDEN.read_text().split()]
    losses = train(look_alike, index_root, tmp_path)
    assert len(losses) == STEPS == len(expected)
    assert torch.tensor(losses).isfinite().all()
    assert losses == pytest.approx(expected, rel=1e-4)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        draw_dataset(Path(folder) / "data", train_frames=16, valid_frames=8, test_frames=4, width=96, height=64)
        for value in train(Path(folder) / "data", Path(folder) / "index", Path(folder) / "run"):
            print(f"{value:.9f}")
