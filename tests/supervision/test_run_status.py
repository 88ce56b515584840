import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from yolo_lightning.supervision.run_status import FitPlan, Scores, Status, read_status, write_status

STATUS = Status(
    **dict.fromkeys(("written_s", "interval_s", "trained_s"), 1.5),
    **dict.fromkeys(("process", "process_started_ticks", "workers", "epoch", "batch", "batches_per_epoch", "step"), 3),
    **dict.fromkeys(("epochs", "step_s", "fetch_share", "validation_s", "validate_every_epochs", "best_map_50"), None),
    host="h",
    device="cuda:0",
    validations_per_epoch=1,
    losses={"train/loss": 1.0, "train/box_loss": None},
    learning_rates={},
    scores=(Scores(0, {"val/map_50": 0.5}),),
)


def test_status_comes_back(tmp_path: Path) -> None:
    write_status(STATUS, tmp_path / "status.json")
    assert read_status(tmp_path / "status.json") == STATUS
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_names_of_what_is_not_finite() -> None:
    assert STATUS.not_finite() == ["train/box_loss"]


def test_field_that_a_later_version_adds_does_not_hide_the_others(tmp_path: Path) -> None:
    write_status(STATUS, tmp_path / "status.json")
    content = json.loads((tmp_path / "status.json").read_text())
    (tmp_path / "status.json").write_text(json.dumps(content | {"later": 1}))
    assert read_status(tmp_path / "status.json") == STATUS


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"scores": [{}]}', '{"scores": [1]}'])
def test_file_that_says_nothing_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(content)
    assert read_status(tmp_path / "status.json") is None
    assert read_status(tmp_path / "none.json") is None


def test_failed_writing_leaves_the_file_before_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(STATUS, tmp_path / "status.json")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_status(replace(STATUS, step=4), tmp_path / "status.json")
    assert read_status(tmp_path / "status.json") == STATUS
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_validations_after_equals_a_count() -> None:
    for epochs in (None, 0, 1, 2, 5, 12):
        for every in (None, 1, 2, 3, 7):
            plan = FitPlan(epochs, 10, every, 2)
            for epoch in range(14):
                counted = 2 * sum(map(plan.is_validated, range(epoch + 1, epochs or 0)))
                assert plan.validations_after(epoch) == counted, (epochs, every, epoch)


def test_number_of_epochs_in_a_damaged_file_costs_no_time() -> None:
    assert FitPlan(1 << 62, 10, 1, 1).validations_after(0) == (1 << 62) - 1
