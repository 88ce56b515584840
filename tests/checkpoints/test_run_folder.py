import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from yolo_lightning.checkpoints import resume, run_folder
from yolo_lightning.checkpoints.checkpoint_file import write_checkpoint
from yolo_lightning.checkpoints.run_folder import LaunchRecord
from yolo_lightning.errors import UserError
from yolo_lightning.utils import run_files


def save(run: Path, name: str = "last.ckpt", steps: int = 1, written: int | None = None) -> Path:
    path = run / "checkpoints" / name
    write_checkpoint({"state_dict": {}, "steps": steps}, path)
    if written is not None:
        os.utime(path, (written, written))
    return path


def test_fresh_runs_are_numbered_and_never_overwrite(tmp_path: Path) -> None:
    seen = []
    for _ in range(4):
        folder = run_folder.fresh_run(tmp_path / "yolo")
        save(folder)
        seen.append(folder.name)
    assert seen == ["yolo", "yolo-2", "yolo-3", "yolo-4"]
    run_folder.prepare(tmp_path / "yolo-5")
    assert [path.name for path in (tmp_path / "yolo-5").iterdir()] == ["checkpoints"]
    assert run_folder.fresh_run(tmp_path / "yolo") == tmp_path / "yolo-5", "a folder without a checkpoint"


def test_ranks_with_equal_process_ids_check_one_folder_at_once(tmp_path: Path) -> None:
    """As in two containers with a shared disk; here the ranks are threads."""
    with ThreadPoolExecutor(8) as ranks:
        list(ranks.map(lambda _: run_folder.prepare(tmp_path / "run"), range(2000)))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_runs_are_listed_by_number_and_by_the_start_of_the_last_fit_whatever_the_clock_said(tmp_path: Path) -> None:
    for name, written in (("yolo", 300), ("yolo-2", 200), ("yolo-10", 100)):
        save(tmp_path / name, written=written)
    assert [folder.name for folder in run_folder.runs(tmp_path / "yolo")] == ["yolo-10", "yolo-2", "yolo"]
    for name in ("yolo", "yolo-2", "yolo-10", "yolo", "yolo"):
        run_folder.note_start(tmp_path / name)
    assert [folder.name for folder in run_folder.runs(tmp_path / "yolo")] == ["yolo", "yolo-10", "yolo-2"]


def test_base_that_ends_in_a_number_has_newer_runs_too(tmp_path: Path) -> None:
    for name in ("yolo-5", "yolo-5-2", "yolo-5"):
        save(tmp_path / name)
        run_folder.note_start(tmp_path / name)
    assert [folder.name for folder in run_folder.runs(tmp_path / "yolo-5")] == ["yolo-5", "yolo-5-2"]


def test_note_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    for name in ("yolo", "yolo-2"):
        save(tmp_path / name)
        run_folder.note_start(tmp_path / name)
    (tmp_path / "yolo" / run_files.STARTED).write_bytes(b"\xff")
    run_folder.note_start(tmp_path / "yolo-2")
    assert [folder.name for folder in run_folder.runs(tmp_path / "yolo")] == ["yolo-2", "yolo"]


def test_folder_of_a_launch_is_the_one_it_has_started_in_last(tmp_path: Path) -> None:
    for name in ("yolo-2", "yolo"):
        (tmp_path / name).mkdir()
        run_folder.note_launch(tmp_path / name, LaunchRecord("launch-1", "token"))
        run_folder.note_start(tmp_path / name)
    os.utime(tmp_path / "yolo-2" / run_files.LAUNCH, (4e9, 4e9))
    assert run_folder.run_of_launch(tmp_path / "yolo", "launch-1") == tmp_path / "yolo"
    assert run_folder.run_of_launch(tmp_path / "yolo", "launch-2") is None


def test_folder_that_other_hosts_do_not_share_lacks_the_token_of_the_first_rank(tmp_path: Path) -> None:
    launch = LaunchRecord("launch-1", "token")
    assert not run_folder.has_launch(tmp_path, launch, patience_s=0.2)
    run_folder.note_launch(tmp_path, launch)
    assert run_folder.has_launch(tmp_path, launch, patience_s=0.0)
    assert not run_folder.has_launch(tmp_path, LaunchRecord("launch-1", "of the next attempt"), patience_s=0.0)


def test_other_folders_are_not_runs_of_the_base(tmp_path: Path) -> None:
    for name in ("yolo", "yolov", "yolo-x", "my-yolo", "yolo-2-old", "v1.5+n", "v1x5n"):
        save(tmp_path / name)
    run_folder.prepare(tmp_path / "yolo-3")
    assert run_folder.runs(tmp_path / "yolo") == [tmp_path / "yolo"]
    assert run_folder.runs(tmp_path / "v1.5+n") == [tmp_path / "v1.5+n"]
    assert run_folder.runs(tmp_path / "missing/yolo") == []


def test_working_folder_can_be_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yolo").mkdir()
    monkeypatch.chdir(tmp_path / "yolo")
    save(Path())
    assert [folder.resolve() for folder in run_folder.runs(Path())] == [tmp_path / "yolo"]
    assert run_folder.fresh_run(Path()).resolve() == tmp_path / "yolo-2"


def test_resume_takes_the_newest_run_and_its_longest_trained_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / "yolo", "step-9.ckpt", steps=9, written=100)
    save(tmp_path / "yolo-2", "step-5.ckpt", steps=5, written=300)
    expected = save(tmp_path / "yolo-2", "step-6.ckpt", steps=6, written=200)
    newest = run_folder.folder_to_resume(tmp_path / "yolo")
    assert resume.checkpoint_to_resume(newest) == expected
    torn = save(tmp_path / "yolo-2", "step-7.ckpt", steps=7)
    torn.write_bytes(b"")
    with pytest.warns(UserWarning, match=f"skipped {torn}"):
        assert resume.checkpoint_to_resume(newest) == expected


def test_nothing_to_resume_names_the_base(tmp_path: Path) -> None:
    for find in (run_folder.folder_to_resume, resume.checkpoint_to_resume):
        with pytest.raises(ValueError, match=rf"no run folder {tmp_path}/yolo or"):
            find(tmp_path / "yolo")


def test_all_checkpoints_damaged_lists_each_with_its_reason(tmp_path: Path) -> None:
    for name in ("step-5.ckpt", "step-6.ckpt"):
        save(tmp_path / "yolo", name).write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged") as error:
        resume.checkpoint_to_resume(tmp_path / "yolo")
    assert str(error.value).count("it has 0 bytes") == 2
    assert "step-5.ckpt" in str(error.value)
    assert "step-6.ckpt" in str(error.value)


def test_best_of_the_newest_run_is_evaluated_or_the_longest_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there are no weights: no run folder .* contains a checkpoint"):
        resume.checkpoint_to_evaluate(tmp_path / "yolo")
    save(tmp_path / "unscored", "step-1.ckpt", steps=1)
    longest = save(tmp_path / "unscored", "step-2.ckpt", steps=2)
    assert resume.checkpoint_to_evaluate(tmp_path / "unscored") == longest
    save(tmp_path / "yolo", "best.ckpt", steps=1, written=100)
    expected = save(tmp_path / "yolo-2", "best.ckpt", steps=1, written=200)
    save(tmp_path / "yolo-2", "last.ckpt", steps=9, written=300)
    assert resume.checkpoint_to_evaluate(tmp_path / "yolo") == expected


def test_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/yolo cannot be written \(Not a directory\).*default_root_dir"):
        run_folder.prepare(tmp_path / "file/yolo")
    with pytest.raises(ValueError, match=r"trainer\.default_root_dir must be a folder, got the file .*/file\."):
        run_folder.configured_folder(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["two\nlines", "tab\there", "bell\a", "right-to-left \u202e"])
def test_control_characters_in_the_name_of_a_run_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.default_root_dir must not contain control characters, got "):
        run_folder.configured_folder(str(tmp_path / name))
    with pytest.raises(UserError, match=r"trainer\.default_root_dir must not contain control characters, got "):
        run_folder.prepare(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
