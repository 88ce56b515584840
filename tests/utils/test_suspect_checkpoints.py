"""Records of the self-check, and checkpoints that are set aside after a wrong result."""

import json
from pathlib import Path

import pytest

from yolo_lightning.utils import run_files
from yolo_lightning.utils.suspect_checkpoints import (
    SelfCheckRecord,
    has_wrong_result,
    record_file,
    set_aside_suspects,
    trusted_steps,
)


def save(run: Path, name: str, steps: int | None) -> None:
    path = run / "checkpoints" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    if steps is not None:
        path.with_name(path.name + ".json").write_text(json.dumps({"steps": steps}))


def note(run: Path, passed: dict[str, int], wrong_layer: str = "", rank: int = 0) -> None:
    record_file(run, rank).write_text(json.dumps({"passed": passed, "wrong_layer": wrong_layer}))


def content(run: Path, rank: int = 0) -> dict[str, object]:
    record: dict[str, object] = json.loads(record_file(run, rank).read_text())
    return record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name, steps in (("step-4", 4), ("step-8", 8), ("step-12", 12), ("last", 12), ("best", 4), ("average", None)):
        save(tmp_path, f"{name}.ckpt", steps)
    return tmp_path


def test_everything_since_the_last_passed_check_of_the_wrong_layer_is_set_aside(run: Path) -> None:
    """The checks of other layers passed later."""
    note(run, {"a": 11, "b": 9, "c": 12}, wrong_layer="b")
    assert has_wrong_result(run)
    assert set_aside_suspects(run) == ["average.ckpt", "last.ckpt", "step-12.ckpt"]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    whole = ["best.ckpt", "step-4.ckpt", "step-8.ckpt"]
    suspect = ["average.ckpt.suspect", "last.ckpt.suspect", "step-12.ckpt.suspect"]
    assert names == sorted([*whole, *(f"{name}.json" for name in whole), *suspect])
    assert content(run) == {"passed": {"a": 9, "b": 9, "c": 9}, "wrong_layer": ""}
    assert not has_wrong_result(run)


def test_layer_of_another_rank_decides(run: Path) -> None:
    note(run, {"a": 12, "b": 12})
    note(run, {"a": 12, "b": 7}, wrong_layer="b", rank=1)
    assert set_aside_suspects(run)[-2:] == ["step-12.ckpt", "step-8.ckpt"]
    assert content(run) == {"passed": {"a": 7, "b": 7}, "wrong_layer": ""}


@pytest.mark.parametrize(("damaged", "remaining"), [(False, ["best.ckpt", "step-4.ckpt"]), (True, [])])
def test_without_a_wrong_layer_in_the_record_the_oldest_check_decides(
    run: Path, damaged: bool, remaining: list[str]
) -> None:
    note(run, {"a": 12, "b": 5})
    if damaged:
        record_file(run, 0).write_text("{")
    set_aside_suspects(run)
    assert sorted(path.name for path in (run / "checkpoints").glob("*.ckpt")) == remaining
    assert run_files.has_checkpoint(run) == bool(remaining)


def test_trusted_steps_are_those_of_the_oldest_check_of_all_ranks(tmp_path: Path) -> None:
    assert trusted_steps(tmp_path) is None
    note(tmp_path, {"a": 12, "b": 5})
    note(tmp_path, {"a": 3, "b": 12}, rank=1)
    (tmp_path / "self_check-notes.json").write_text("{}")
    assert trusted_steps(tmp_path) == 3
    assert SelfCheckRecord({"a": 7, "b": 2, "c": 9}).up_to(8, ["a", "c", "new"]).passed == {"a": 7, "c": 8, "new": 0}
