"""The closing block of a fit, and the files that it writes: a failure of one of them never fails the fit."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from tests.callbacks.tiny_training import TinyModule, loader, tiny_trainer
from yolo_lightning.callbacks import BestCheckpoint, LastCheckpoint
from yolo_lightning.commands import fit_summary


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    printed: list[str] = []
    monkeypatch.setattr(fit_summary, "rank_zero_info", printed.append)
    monkeypatch.setattr(fit_summary, "rank_zero_warn", printed.append)
    monkeypatch.setattr(fit_summary, "write_report", lambda run, path: path.write_text("page"))
    monkeypatch.setattr("sys.argv", ["yolo-lightning"])
    return printed


def fitted(folder: Path, **options: Any) -> tuple[Trainer, TinyModule]:
    module = TinyModule(val_scores=[0.25, 0.75, 0.5])
    trainer = tiny_trainer(folder, BestCheckpoint(), LastCheckpoint(), epochs=3, **options)
    trainer.fit(module, loader(1), loader(1))
    return trainer, module


def test_block_names_the_best_epoch_the_files_and_the_next_commands(
    tmp_path: Path, block: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_summary, "write_pt", lambda checkpoint, path: path.write_text("weights"))
    run = tmp_path / "a run"
    fit_summary.end_fit(*fitted(run), None, with_pt=True)  # type: ignore[arg-type]
    (text,) = block
    assert text.startswith("finished 3 epochs; best epoch 2 with mAP50 0.7500\n")
    for name in ("best.ckpt", "last.ckpt", "best.pt"):
        assert f"{run / 'checkpoints' / name}\n" in text
    assert f"{run / 'report.html'}\n" in text
    assert f"  yolo-lightning test '{run}'" in text
    assert f"  yolo-lightning predict PICTURES --run '{run}'" in text
    assert all(character.isprintable() or character == "\n" for character in text)


def test_failure_of_best_pt_is_a_warning_and_the_block_suggests_export(
    tmp_path: Path, block: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(checkpoint: Path, path: Path) -> None:
        raise RuntimeError("no such layer\nmore")

    monkeypatch.setattr(fit_summary, "write_pt", fails)
    fit_summary.end_fit(*fitted(tmp_path), None, with_pt=True)  # type: ignore[arg-type]
    warning, text = block
    assert warning.startswith(
        f"could not write {tmp_path / 'checkpoints' / 'best.pt'} (no such layer); the fit is finished"
    )
    assert "Ultralytics file" not in text
    assert f"  yolo-lightning export {tmp_path}" in text


def test_without_a_validation_there_is_no_best_epoch(tmp_path: Path, block: list[str]) -> None:
    fit_summary.end_fit(*fitted(tmp_path, limit_val_batches=0), None, with_pt=True)  # type: ignore[arg-type]
    assert block[0].startswith("finished 3 epochs; no best checkpoint, because no validation was scored\n")


def test_best_checkpoint_of_an_earlier_folder_is_not_called_unsaved(tmp_path: Path, block: list[str]) -> None:
    trainer, module = fitted(tmp_path, limit_val_batches=0)
    trainer.checkpoint_callback.recent = [0.5]  # type: ignore[union-attr]
    fit_summary.end_fit(trainer, module, None, with_pt=False)  # type: ignore[arg-type]
    reason = f"the best epoch is an earlier one, whose best.ckpt is not in {tmp_path / 'checkpoints'}"
    assert block[0].startswith(f"finished 3 epochs; no best checkpoint, because {reason}")


def test_best_pt_is_optional(tmp_path: Path, block: list[str]) -> None:
    fit_summary.end_fit(*fitted(tmp_path), None, with_pt=False)  # type: ignore[arg-type]
    assert "best.pt" not in block[0]
    assert not (tmp_path / "checkpoints/best.pt").exists()
