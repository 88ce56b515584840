"""A run that is resumed with another batch size: every sample once, one count of steps, one row each."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from tests.helpers.data_module import data_module
from yolo_lightning.callbacks import LastCheckpoint, MetricsFile
from yolo_lightning.checkpoints.checkpoint_io import AtomicCheckpointIO
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.utils.loop_position import schedule_step, steps_begun

EPOCHS, FRAMES = 3, 16


class Interrupt(Exception):
    """Ends a fit."""


class Diary(LightningModule):
    """Writes down what it is trained on."""

    def __init__(self, until: int | None = None) -> None:
        super().__init__()
        self.weight, self.until = nn.Parameter(torch.zeros(1)), until
        self.batches: list[tuple[int, int, int, tuple[str, ...]]] = []
        self.validated: list[int] = []
        self.places: list[int] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        step = steps_begun(self.trainer)
        if step == self.until:
            raise Interrupt
        self.batches.append((step, self.current_epoch, batch_idx, batch.image_ids))
        self.places.append(schedule_step(self.trainer, batch_idx))
        self.log("train/loss", float(step), batch_size=len(batch))
        return self.weight.sum()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx == 0:
            self.validated.append(self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["steps"] = steps_begun(self.trainer)


@pytest.fixture
def fit(tmp_path: Path, look_alike: Path, index_root: Path) -> Callable[..., Diary]:
    """Trains with a batch size until a step begins, continuing from `last.ckpt` where there is one."""

    def run(batch_size: int, until: int | None = None, **options: Any) -> Diary:
        data = data_module(
            str(look_alike),
            index_root=str(index_root),
            image_size=32,
            batch_size=batch_size,
            loader=LoaderSettings(num_workers=0),
        )
        module, last = Diary(until), tmp_path / "checkpoints/last.ckpt"
        callbacks: list[Callback] = [MetricsFile(), LastCheckpoint(1, keep=99)]
        trainer = Trainer(
            default_root_dir=tmp_path,
            accelerator="cpu",
            max_epochs=EPOCHS,
            logger=False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            plugins=[AtomicCheckpointIO()],
            **options,
        )
        resume = last if last.is_file() else None
        if until is None:
            trainer.fit(module, datamodule=data, ckpt_path=resume)
        else:
            with pytest.raises(Interrupt):
                trainer.fit(module, datamodule=data, ckpt_path=resume)
        return module

    return run


def ids(*diaries: Diary) -> list[str]:
    return [image_id for diary in diaries for *_, batch in diary.batches for image_id in batch]


@pytest.mark.parametrize(
    ("before", "after", "until", "remaining"),
    [
        (4, 2, 3, [2, 2, 2, 2]),  # 8 of 16 samples are done in the first epoch
        (4, 8, 3, [8]),
        (2, 16, 2, [14]),  # the rest is less than one batch
        (4, 5, 6, [5, 5, 2]),  # within the second epoch, after 4 of its samples
        (8, 3, 2, [3, 3, 2]),
    ],
)
def test_resumed_with_another_batch_size(
    before: int, after: int, until: int, remaining: list[int], fit: Callable[..., Diary], tmp_path: Path
) -> None:
    first, second = fit(before, until), fit(after)
    seen = ids(first, second)
    assert len(seen) == EPOCHS * FRAMES
    epochs = [seen[start : start + FRAMES] for start in range(0, len(seen), FRAMES)]
    assert all(len(set(epoch)) == FRAMES for epoch in epochs)

    resumed_epoch = second.batches[0][1]
    sizes = [len(batch) for _, epoch, _, batch in second.batches if epoch == resumed_epoch]
    assert sizes == remaining
    per_epoch = -(-FRAMES // after)
    assert [number for _, epoch, number, _ in second.batches if epoch == resumed_epoch] == list(
        range(per_epoch - len(remaining), per_epoch)
    )
    assert [number for _, epoch, number, _ in second.batches if epoch == EPOCHS - 1][-per_epoch:] == [*range(per_epoch)]
    assert first.validated + second.validated == [*range(EPOCHS)]
    assert second.places == list(range(second.places[0], EPOCHS * per_epoch))

    steps = [step for diary in (first, second) for step, *_ in diary.batches]
    assert steps == list(range(1, len(steps) + 1))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [(int(row["step"]), row["train/loss"]) for row in csv.DictReader(file)]
    assert [step for step, loss in rows if loss] == steps
    assert rows == sorted(rows, key=lambda row: row[0])
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*.ckpt"))
    assert names[-1] == f"step-{steps[-1]:09d}.ckpt"


def test_the_newest_checkpoint_is_the_one_trained_longest_after_larger_batches(
    fit: Callable[..., Diary], tmp_path: Path
) -> None:
    """Steps counted as epochs times batches would fall when batches grow, and the older checkpoint would win."""
    fit(1, until=12)
    fit(16, until=13)
    fit(16)
    last = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert last["steps"] == 11 + 1 + 2


def test_order_is_that_of_an_uninterrupted_run(
    fit: Callable[..., Diary], tmp_path: Path, look_alike: Path, index_root: Path
) -> None:
    changed = ids(fit(4, until=6), fit(3, until=8), fit(5))
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    assert changed == ids(fit(4))
