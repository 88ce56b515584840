"""A run is resumed on a machine that has only the mirror of its checkpoints."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import torch

from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.checkpoints.mirror import RemoteFolder, mirror as copy, to_mirror
from yolo_lightning.checkpoints.resume import checkpoint_to_fit, download, run_to_download
from yolo_lightning.checkpoints.run_folder import folder_to_fit

MIRROR = "memory://mirror"
RUN = Path("runs/yolo")
Run = Callable[..., None]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


def mirror(name: str, steps: int, folder: Path) -> None:
    write_checkpoint({"state_dict": {}, "steps": steps}, folder / f"step-{steps:09d}.ckpt")
    copy(to_mirror(folder), RemoteFolder(f"{MIRROR}/{name}"))


def fetch_from_mirror(base: Path, mirror: str, *, exactly: bool = False) -> None:
    if (name := run_to_download(base, mirror, exactly=exactly)) is not None:
        download(base, mirror, name)


def test_newest_run_is_fetched_where_there_is_none(tmp_path: Path) -> None:
    for name, steps in (("yolo", 90), ("yolo-2", 40), ("yolo-10", 10), ("other", 99)):
        mirror(name, steps, tmp_path / "away" / name)
    fetch_from_mirror(tmp_path / "yolo", MIRROR)
    assert [path.name for path in tmp_path.glob("yolo*")] == ["yolo-10"]
    fetched = checkpoint_to_fit(tmp_path / "yolo", None, resume=True)
    assert fetched == tmp_path / "yolo-10/checkpoints/step-000000010.ckpt"
    assert folder_to_fit(tmp_path / "yolo", fetched, MIRROR) == tmp_path / "yolo-10"


def test_supervised_fit_fetches_the_very_run(tmp_path: Path) -> None:
    for name, steps in (("yolo", 90), ("yolo-2", 40)):
        mirror(name, steps, tmp_path / "away" / name)
    fetch_from_mirror(tmp_path / "yolo", MIRROR, exactly=True)
    assert [path.name for path in tmp_path.glob("yolo*/checkpoints/*.ckpt")] == ["step-000000090.ckpt"]


def test_run_that_is_here_is_continued_without_asking_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint({"state_dict": {}, "steps": 5}, tmp_path / "yolo/checkpoints/step-000000005.ckpt")
    monkeypatch.setattr(RemoteFolder, "names", lambda remote: pytest.fail("asked"))
    fetch_from_mirror(tmp_path / "yolo", MIRROR)
    assert folder_to_fit(tmp_path / "yolo", checkpoint_to_fit(tmp_path / "yolo", None, True), MIRROR).name == "yolo"


def test_new_run_takes_no_name_that_a_mirrored_one_has(tmp_path: Path) -> None:
    mirror("yolo", 90, tmp_path / "away")
    assert folder_to_fit(tmp_path / "yolo", None, MIRROR) == tmp_path / "yolo-2"
    assert folder_to_fit(tmp_path / "yolo", None) == tmp_path / "yolo"


@pytest.mark.parametrize("mirror", ["ftp://127.0.0.1:9/runs", "http://127.0.0.1:9/runs"])
def test_store_that_is_away_is_an_error_at_the_start_of_a_run(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(ValueError, match=f"mirror {mirror} cannot be read: .*127.0.0.1:9"):
        fetch_from_mirror(tmp_path / "yolo", mirror)
    with pytest.raises(ValueError, match=f"mirror {mirror} cannot be read"):
        folder_to_fit(tmp_path / "yolo", None, mirror)


def test_unknown_kind_of_mirror_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere://\*\*\* cannot be opened"):
        folder_to_fit(tmp_path / "yolo", None, "nowhere://runs")


def test_folder_of_the_run_must_be_local(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("fit", "--trainer.default_root_dir", "s3://bucket/run")
    assert "must be a local folder, got s3:" in capsys.readouterr().err


@pytest.mark.whole_run
def test_lost_machine_is_replaced(run: Run) -> None:
    run("fit", "--mirror", MIRROR, "--trainer.max_epochs", "1", "--data.batch_size", "8")
    newest = RUN / "checkpoints/step-000000002.ckpt"
    content = newest.read_bytes()
    shutil.rmtree(RUN)
    run("fit", "--mirror", MIRROR, "--resume", "--trainer.max_epochs", "2", "--data.batch_size", "8")
    assert newest.read_bytes() == content
    assert torch.load(RUN / "checkpoints/last.ckpt", weights_only=True)["steps"] == 4
    assert "step-000000004.ckpt" in RemoteFolder(f"{MIRROR}/yolo").complete()
    run("predict", "--ckpt_path", f"{MIRROR}/yolo/best.ckpt", "--trainer.default_root_dir", "elsewhere")
    assert Path("elsewhere/predictions.json").is_file()
