"""Selection of the run folder that a fit resumes, and the number of files read for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_lightning.checkpoints import checkpoint_file, run_folder
from yolo_lightning.checkpoints.checkpoint_file import find_damage, write_checkpoint
from yolo_lightning.checkpoints.resume import (
    check_resumable,
    checked,
    checkpoint_to_evaluate,
    checkpoint_to_resume,
    latest_checkpoint,
    storable,
)
from yolo_lightning.checkpoints.run_folder import folder_to_fit
from yolo_lightning.checkpoints.torch_archive import load_checkpoint
from yolo_lightning.model.network_settings import read_settings

RESUMABLE = {
    "state_dict": {"graph.weight": torch.zeros(1)},
    "hyper_parameters": {"class_names": ["person"]},
    "loops": {"fit_loop": {"state_dict": {}}},
    "callbacks": {},
    "optimizer_states": [{"state": {}, "param_groups": []}],
}
"""Parts of a checkpoint that a fit requires."""


def save(run: Path, steps: int) -> Path:
    path = run / f"checkpoints/step-{steps}.ckpt"
    write_checkpoint({**RESUMABLE, "steps": steps}, path)
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


@pytest.mark.parametrize("choose", [checkpoint_to_resume, latest_checkpoint])
def test_checkpoints_after_a_wrong_result_are_not_resumed_without_a_supervisor(
    choose: Callable[[Path], Path | None], tmp_path: Path
) -> None:
    run = tmp_path / "yolo"
    for steps in (4, 8):
        save(run, steps)
    (run / "self_check.json").write_text('{"passed": {"a": 8, "b": 5}, "wrong_layer": "b"}')
    with pytest.warns(UserWarning, match=r"checkpoints set aside after the last passed self-check: step-8\.ckpt"):
        assert choose(run) == run / "checkpoints/step-4.ckpt"
    save(run, 8)
    assert choose(run) == run / "checkpoints/step-8.ckpt"


def test_resume_reads_the_newest_checkpoint_once_to_check_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "yolo", 1)
    newest = save(tmp_path / "yolo", 2)
    checked: list[Path] = []

    def count(path: Path) -> str | None:
        checked.append(path)
        return find_damage(path)

    for module in (checkpoint_file, run_folder):
        monkeypatch.setattr(module, "find_damage", count)
    assert checkpoint_to_resume(tmp_path / "yolo") == newest
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
        checked("best.pt", tmp_path)


@pytest.mark.parametrize("name", ["loops", "callbacks", "optimizer_states"])
def test_checkpoint_without_a_part_is_not_resumed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "part.ckpt"
    write_checkpoint({key: part for key, part in RESUMABLE.items() if key != name}, path)
    expected = f"checkpoint {path} has no {name} and cannot be resumed; start a new run .* --model.weights {path}"
    with pytest.raises(ValueError, match=expected):
        check_resumable(load_checkpoint(path, "meta"), path)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"steps": "eight"}, "checkpoint.steps must be an integer, got 'eight'"),
        ({"epoch": None}, "checkpoint.epoch must be an integer, got None"),
        ({"loops": "x"}, "checkpoint.loops must be a dictionary"),
        ({"optimizer_states": ["x"]}, "checkpoint.optimizer_states must be a list of dictionaries"),
        ({"hyper_parameters": "x"}, "checkpoint.hyper_parameters must be a dictionary"),
        ({"hyper_parameters": {"class_names": "person"}}, "hyper_parameters.class_names must be a list of texts"),
        ({"input": "x"}, "checkpoint.input must be a dictionary"),
        ({"state_dict": {}}, "checkpoint.state_dict must contain tensors, got none"),
    ],
    ids=str,
)
def test_part_of_another_type_is_named_with_its_file(part: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "part.ckpt"
    torch.save({**RESUMABLE, **part}, path)
    for read in (load_checkpoint, read_settings):
        with pytest.raises(ValueError, match=f"checkpoint {path} is damaged: .*{message}.*; use another checkpoint"):
            read(path)


@pytest.mark.parametrize("choose", [checkpoint_to_resume, latest_checkpoint])
def test_newer_file_with_weights_only_is_not_resumed(choose: Callable[[Path], Path | None], tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    write_checkpoint({"state_dict": RESUMABLE["state_dict"], "loops": {}, "steps": 5}, path.with_name("step-5.ckpt"))
    with pytest.warns(UserWarning, match=r"skipped .*step-5\.ckpt: it contains weights only"):
        assert choose(tmp_path) == path
    assert folder_to_fit(tmp_path, path) == tmp_path


def test_file_with_weights_only_is_returned_if_there_is_no_other(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints/step-5.ckpt"
    write_checkpoint({"state_dict": RESUMABLE["state_dict"]}, path)
    assert checkpoint_to_evaluate(tmp_path) == latest_checkpoint(tmp_path) == path


def test_other_modules_may_store_any_parts(tmp_path: Path) -> None:
    path = tmp_path / "run/checkpoints/epoch=0-val/loss=0.1.ckpt"  # the slash is that of a metric, `{val/loss}`
    path.parent.mkdir(parents=True)
    torch.save({**RESUMABLE, "hyper_parameters": {"class_names": "a"}, "config": [1], "input": 3}, path)
    assert latest_checkpoint(tmp_path / "run") == path


def test_checkpoints_below_the_folder_of_a_logger_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "lightning_logs" / "version_0"
    path = save(folder, 8)
    with pytest.warns(UserWarning, match=rf"a new run begins, but {path} exists: .*version_0'\)"):
        assert latest_checkpoint(tmp_path) is None
    with pytest.warns(UserWarning, match=rf"a new run begins, but {path} exists"):
        assert latest_checkpoint(folder.parent) is None
    assert latest_checkpoint(folder) == path
