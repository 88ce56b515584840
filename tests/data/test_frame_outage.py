"""Frames that cannot be read for a while: an outage is waited for, single files are left out."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import LambdaCallback

from tests.helpers.data_module import cpu_trainer, data_module, set_up
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.datamodule import DetectionDataModule
from yolo_lightning.data.frame_outage import FrameOutage, FrameOutageError
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.utils.activity import Activity, current
from yolo_lightning.utils.stop_signals import Stopped, request


@pytest.fixture
def root(look_alike: Path, tmp_path: Path) -> Path:
    """A copy of the drawn dataset, whose frames a test can move away."""
    return shutil.copytree(look_alike, tmp_path / "data")


@pytest.fixture
def data(root: Path, index_root: Path) -> DetectionDataModule:
    trainer = cpu_trainer(max_epochs=20)
    return set_up("fit", root=str(root), index_root=str(index_root), trainer=trainer, max_bad_frames=3)


class Disk:
    """Moves the frames away, and back at a number of pauses; no time passes."""

    def __init__(self, frames: Path, back_after: int) -> None:
        self.frames = frames
        self.back_after = back_after
        self.pauses: list[float] = []
        self.activities: set[Activity] = set()
        self.away = frames.with_name("away")

    def take_away(self) -> None:
        self.frames.rename(self.away)

    def pause(self, pause_s: float) -> None:
        self.activities.add(current())
        self.pauses.append(pause_s)
        if len(self.pauses) == self.back_after:
            self.away.rename(self.frames)


def same(batch: Batch, other: Batch) -> bool:
    tensors = zip((batch.images, batch.boxes, batch.labels), (other.images, other.boxes, other.labels), strict=True)
    return (
        all(torch.equal(tensor, other_tensor) for tensor, other_tensor in tensors)
        and batch.image_ids == other.image_ids
    )


@pytest.mark.parametrize("back_after", [1, 3, 12])
@pytest.mark.parametrize("stage", ["train", "valid"])
def test_batch_after_an_outage_equals_the_batch_without(
    data: DetectionDataModule, root: Path, stage: str, back_after: int
) -> None:
    loader = data.train_dataloader() if stage == "train" else data.val_dataloader()
    expected = next(iter(loader))
    disk = Disk(root / "frames", back_after)
    loader = data.train_dataloader() if stage == "train" else data.val_dataloader()
    disk.take_away()
    batch = next(iter(loader))
    assert len(set(batch.absent)) > 1
    assert not any(batch.readable)
    outage = FrameOutage(data.bad_frames, disk.pause)
    whole = outage.whole(batch, loader.dataset)  # type: ignore[arg-type]
    assert same(whole, expected)
    assert not whole.bad_frames
    assert len(disk.pauses) >= back_after
    assert disk.activities == {Activity.WAIT}


def test_single_lost_file_is_left_out_after_a_few_attempts(data: DetectionDataModule, root: Path) -> None:
    loader = data.val_dataloader()
    (root / data.index("valid").file_name(0)).unlink()
    disk = Disk(root / "frames", back_after=0)
    outage = FrameOutage(data.bad_frames, disk.pause)
    batch = outage.whole(next(iter(loader)), loader.dataset)  # type: ignore[arg-type]
    assert batch.readable.count(False) == 1
    assert len(disk.pauses) == 3
    data.bad_frames.add(batch.bad_frames)
    outage.whole(next(iter(loader)), loader.dataset)  # type: ignore[arg-type]
    assert len(disk.pauses) == 3  # the file is known to be lost


def test_outage_ends_with_the_patience_or_a_stop_signal(
    data: DetectionDataModule, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = data.val_dataloader()
    disk = Disk(root / "frames", back_after=0)
    disk.take_away()
    batch = next(iter(loader))
    outage = FrameOutage(data.bad_frames, disk.pause)
    outage.patience_s = -1.0
    with pytest.raises(FrameOutageError, match=r"8 of 8 probed frames cannot be read .*No such file"):
        outage.whole(batch, loader.dataset)  # type: ignore[arg-type]
    outage.patience_s = 1000.0
    monkeypatch.setattr(request, "number", 15)
    with pytest.raises(Stopped):
        outage.whole(batch, loader.dataset)  # type: ignore[arg-type]


class Sums(LightningModule):
    """Stores the sums of the images of each batch; trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.sums: list[int] = []

    def training_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        self.sums.append(int(batch.images.long().sum()))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        self.sums.append(int(batch.images.long().sum()))

    def configure_optimizers(self) -> None:
        return None


def sums_of_a_fit(root: Path, index_root: Path, disk: Disk | None, hook: str = "") -> list[int]:
    """Return the sums of a fit whose frames are taken away once in `hook`."""

    def take_away(*_: Any) -> None:
        if disk is not None and not disk.away.exists() and not disk.pauses:
            disk.take_away()

    module = Sums()
    callbacks: list[Callback] = [LambdaCallback(**{hook: take_away})] if hook else []
    trainer = cpu_trainer(max_epochs=1, num_sanity_val_steps=0, callbacks=callbacks)
    loader = LoaderSettings(num_workers=0)
    data = data_module(str(root), batch_size=4, image_size=64, loader=loader, index_root=str(index_root))
    if disk is not None:
        data._outage._pause = disk.pause
    trainer.fit(module, data)
    return module.sums


@pytest.mark.parametrize("hook", ["on_train_start", "on_train_batch_end"])
def test_fit_waits_for_its_frames(hook: str, root: Path, index_root: Path) -> None:
    disk = Disk(root / "frames", back_after=6)
    assert sums_of_a_fit(root, index_root, disk, hook) == sums_of_a_fit(root, index_root, None)
    assert len(disk.pauses) >= 6
