"""Parts that stand alone: the examples of their pages run, imports are few, checkpoints work under a Trainer."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from tests.conftest import REPOSITORY
from tests.helpers.program import run_python
from yolo_lightning import AtomicCheckpointIO, CheckpointMirror, LastCheckpoint, find_damage, latest_checkpoint

pytestmark = pytest.mark.whole_run

FOREIGN = {"albumentations", "cv2", "faster_coco_eval", "jsonargparse", "supervision", "ultralytics"}
"""Packages that no part imports."""
SHOW_IMPORTS = "\nimport sys\nprint('LOADED', *sys.modules)\n"


@dataclass(frozen=True)
class Part:
    """Example number `block` of a page in docs, and all rooms of the package that it imports."""

    page: str
    rooms: set[str]
    is_lightning: bool
    block: int = 0


PARTS = {
    "exact resume": Part(
        "exact_resume", {"callbacks", "checkpoints", "data", "supervision", "training", "utils"}, True
    ),
    "checkpoint files": Part(
        "checkpoint_files", {"callbacks", "checkpoints", "supervision", "training", "utils"}, True
    ),
    "mean average precision": Part("mean_average_precision", {"data", "evaluation", "utils"}, False),
    "swap_convs": Part("swap_convs", {"conv"}, False),
    "heartbeat": Part("supervise", {"supervision", "utils"}, False),
    "heartbeat of a Trainer": Part(
        "supervise", {"callbacks", "checkpoints", "supervision", "training", "utils"}, True, 1
    ),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_example_of_the_page_imports_nothing_of_the_rest(part: Part, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / f"{part.page}.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1 + part.block].split("```")[0]
    assert len([line for line in example.splitlines() if line]) <= 18, "the example has about 15 lines"
    done = run_python(tmp_path, "-c", example + SHOW_IMPORTS)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("LOADED ")[2].split()
    packages = {name.split(".")[0] for name in loaded}
    assert packages & FOREIGN == set()
    assert ("lightning" in packages) == part.is_lightning
    module_parts = [name.split(".") for name in loaded if name.startswith("yolo_lightning.")]
    assert {name[1] for name in module_parts} - {"errors"} == part.rooms
    if part.page == "exact_resume":
        modules = {name[2] for name in module_parts if name[1] == "data" and len(name) > 2}
        assert modules <= {"sampling", "array_types", "occurrences"}


def plain_trainer(folder: Path, *callbacks: LastCheckpoint | CheckpointMirror, steps: int = 4) -> Trainer:
    return Trainer(
        max_steps=steps,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[LastCheckpoint(interval_steps=2, keep=9), *callbacks],
        plugins=[AtomicCheckpointIO()],
        logger=False,
        enable_progress_bar=False,
        limit_val_batches=0,
    )


def test_damaged_checkpoint_is_detected_and_not_loaded(tmp_path: Path) -> None:
    plain_trainer(tmp_path).fit(BoringModel())
    newest = latest_checkpoint(tmp_path)
    assert newest == tmp_path / "checkpoints" / "step-000000004.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.unlink()  # `last.ckpt` is a link to the same file
    newest.write_bytes(content)
    assert find_damage(newest) == "its content does not match its checksum"
    with pytest.raises(ValueError, match="cannot be used: its content does not match its checksum"):
        plain_trainer(tmp_path).fit(BoringModel(), ckpt_path=newest)
    (tmp_path / "checkpoints" / "last.ckpt").unlink()
    with pytest.warns(UserWarning, match="skipped .*step-000000004.ckpt"):
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000000002.ckpt"


def test_lost_run_is_restored_from_the_mirror_and_resumed(tmp_path: Path) -> None:
    run_folder, mirror = tmp_path / "run", f"file://{tmp_path}/mirror"
    plain_trainer(run_folder, CheckpointMirror(mirror)).fit(BoringModel())
    run_folder.rename(tmp_path / "lost")
    assert latest_checkpoint(run_folder) is None
    restored = latest_checkpoint(run_folder, mirror)
    assert restored == run_folder / "checkpoints" / "step-000000004.ckpt"
    trainer = plain_trainer(run_folder, steps=6)
    trainer.fit(BoringModel(), ckpt_path=restored)
    assert trainer.global_step == 6
    before = torch.load(restored, weights_only=True)["state_dict"]
    after = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert not torch.equal(before["layer.weight"], after["layer.weight"])
