"""Checkpoints that Lightning saves and loads through `AtomicCheckpointIO`, at local paths and addresses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from yolo_lightning import AtomicCheckpointIO, LastCheckpoint, YOLOModule, find_damage, latest_checkpoint
from yolo_lightning.errors import UserError


def fit(
    folder: Path,
    epochs: int,
    checkpoint: Any = None,
    module: type[BoringModel] = BoringModel,
    weights_only: bool | None = None,
    **options: Any,
) -> Trainer:
    trainer = Trainer(
        max_epochs=epochs,
        limit_train_batches=2,
        limit_val_batches=0,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(**({"dirpath": f"{folder}/checkpoints", "filename": "{epoch}"} | options))],
        plugins=[AtomicCheckpointIO()],
    )
    trainer.fit(module(), ckpt_path=checkpoint, weights_only=weights_only)
    return trainer


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryFileSystem:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return MemoryFileSystem()


def test_checkpoints_at_an_address_are_written_and_read_by_fsspec(memory: MemoryFileSystem, tmp_path: Path) -> None:
    address = "memory://runs/one"
    fit(tmp_path, 2, dirpath=address, save_last=True)
    names = sorted(Path(path).name for path in memory.ls("/runs/one", detail=False))
    assert names == ["epoch=1.ckpt", "epoch=1.ckpt.json", "last.ckpt", "last.ckpt.json"]
    assert [path.name for path in tmp_path.iterdir() if "memory" in path.name] == []
    assert fit(tmp_path, 3, f"{address}/last.ckpt", dirpath=address).current_epoch == 3
    content = bytearray(memory.cat_file("/runs/one/last.ckpt"))
    content[len(content) // 2] ^= 1
    memory.pipe_file("/runs/one/last.ckpt", bytes(content))
    (*_, cached) = (tmp_path / "cache").rglob("last.ckpt")
    cached.unlink()
    with pytest.raises(ValueError, match=r"memory://runs/one/last\.ckpt cannot be used"):
        fit(tmp_path, 4, f"{address}/last.ckpt", dirpath=address)


@pytest.mark.parametrize("folder", [Path("s3://bucket/runs"), "file:///tmp/runs"])
def test_an_address_that_has_become_a_path_is_refused(folder: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give an address as text"):
        AtomicCheckpointIO().save_checkpoint({}, Path(folder) / "last.ckpt")


@pytest.mark.parametrize("folder", ["memory://runs", "s3://bucket/runs"])
def test_run_folder_at_an_address_is_refused_before_training(folder: str) -> None:
    trainer = Trainer(accelerator="cpu", callbacks=[LastCheckpoint()], logger=False)
    trainer._default_root_dir = folder
    with pytest.raises(ValueError, match=r"must be a local folder, got .* the callback CheckpointMirror"):
        LastCheckpoint().setup(trainer, BoringModel(), "fit")
    with pytest.raises(ValueError, match="folder must be a local run folder"):
        latest_checkpoint(folder)


def test_module_is_not_loaded_from_a_local_folder_with_the_name_of_an_address() -> None:
    with pytest.raises(ValueError, match=r"checkpoint memory://nowhere/last\.ckpt cannot be read"):
        YOLOModule.load_from_checkpoint("memory://nowhere/last.ckpt")


@pytest.mark.parametrize(("first", "second"), [("link", "link"), (True, "link"), ("link", True)])
def test_last_checkpoint_may_become_a_link_or_a_file(first: Any, second: Any, tmp_path: Path) -> None:
    last = tmp_path / "checkpoints/last.ckpt"
    fit(tmp_path, 1, save_last=first, save_top_k=-1)
    fit(tmp_path, 2, last, save_last=second, save_top_k=-1)
    assert find_damage(last) is None
    assert fit(tmp_path, 3, "last", save_last=second, save_top_k=-1).current_epoch == 3


class WithSettings(BoringModel):
    def __init__(self, rate: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters({"rate": np.float64(0.1)})


def test_hyperparameters_that_lightning_does_not_load_are_named_at_the_save_and_the_resume(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"contains objects of numpy.*, such as hyperparameters") as log:
        fit(tmp_path, 2, module=WithSettings)
    assert sum("hyperparameters" in str(warning.message) for warning in log) == 1
    path = latest_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"objects of numpy.*weights_only=False\) if you trust the file") as error:
        fit(tmp_path, 3, path, module=WithSettings)
    assert "\n" not in str(error.value)
    fit(tmp_path, 3, path, module=WithSettings, weights_only=False)
