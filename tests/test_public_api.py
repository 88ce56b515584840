"""What `import yolo_lightning` offers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

import yolo_lightning
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("name", yolo_lightning.__all__)
def test_names_are_imported_at_first_use(name: str) -> None:
    assert getattr(yolo_lightning, name).__name__ == name


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'yolo_lightning' has no attribute 'YoloModule'"):
        _ = yolo_lightning.YoloModule


def test_import_loads_neither_torch_nor_lightning() -> None:
    code = "import sys, yolo_lightning; print({'torch', 'lightning', 'ultralytics'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_training_without_the_command_line(look_alike: Path, index_root: Path, tmp_path: Path) -> None:
    from yolo_lightning import DetectionDataModule, YOLOModule
    from yolo_lightning.data.loader import LoaderSettings

    data = DetectionDataModule(
        str(look_alike), index_root=str(index_root), image_size=64, batch_size=4, loader=LoaderSettings(num_workers=0)
    )
    model = YOLOModule(class_names=data.class_names, conv_backend="gemm")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = Trainer(
        max_epochs=1,
        limit_train_batches=2,
        limit_val_batches=1,
        accelerator="cpu",
        default_root_dir=tmp_path,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, data)
    assert trainer.global_step == 1
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
