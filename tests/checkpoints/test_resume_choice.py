"""Selection of the run folder that a fit resumes, and the number of files read for it."""

from pathlib import Path

import pytest

from yolo_lightning.checkpoints import checkpoint_file, run_folder
from yolo_lightning.checkpoints.checkpoint_file import find_damage, write_checkpoint
from yolo_lightning.checkpoints.resume import checkpoint_to_fit, storable
from yolo_lightning.checkpoints.run_folder import folder_to_fit


def save(run: Path, steps: int) -> Path:
    path = run / f"checkpoints/step-{steps}.ckpt"
    write_checkpoint({"state_dict": {}, "steps": steps}, path)
    return path


@pytest.mark.parametrize(
    ("resumed", "is_torn", "folder"),
    [
        (("yolo", 2), False, "yolo"),
        (("yolo", 1), False, "yolo-2"),
        (("yolo", 1), True, "yolo"),
        (("other", 5), False, "yolo-2"),
    ],
    ids=["newest", "its run has gone beyond", "what follows is damaged", "from elsewhere"],
)
def test_folder_in_which_a_checkpoint_continues(
    resumed: tuple[str, int], is_torn: bool, folder: str, tmp_path: Path
) -> None:
    for steps in (1, 2):
        newest = save(tmp_path / "yolo", steps)
    save(tmp_path / "other", 5)
    if is_torn:
        newest.write_bytes(b"torn")
    name, steps = resumed
    assert folder_to_fit(tmp_path / "yolo", tmp_path / name / f"checkpoints/step-{steps}.ckpt") == tmp_path / folder


def test_resume_reads_the_newest_checkpoint_once_to_check_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "yolo", 1)
    newest = save(tmp_path / "yolo", 2)
    checked: list[Path] = []

    def count(path: Path) -> str | None:
        checked.append(path)
        return find_damage(path)

    for module in (checkpoint_file, run_folder):
        monkeypatch.setattr(module, "find_damage", count)
    assert checkpoint_to_fit(tmp_path / "yolo", None, resume=True) == newest
    assert folder_to_fit(tmp_path / "yolo", newest) == tmp_path / "yolo"
    assert checked == [newest]


def test_stored_configuration_has_neither_secrets_nor_places() -> None:
    config = {
        "trainer": {"default_root_dir": "/home/me", "logger": [{"init_args": {"api_key": "x", "name": "run"}}]},
        "supervision": {"notify": {"webhook": "https://hook", "ping": None}, "attempts": 3},
        "mirror": "s3://bucket",
        "data": {"image_size": 64},
    }
    assert storable(config) == {
        "trainer": {"logger": [{"init_args": {"name": "run"}}]},
        "supervision": {"notify": {}, "attempts": 3},
        "data": {"image_size": 64},
    }


def test_pt_file_is_no_checkpoint_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ckpt_path must be a \.ckpt file, got best\.pt\. Use --model\.weights"):
        checkpoint_to_fit(tmp_path, "best.pt", False)
