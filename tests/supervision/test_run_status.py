import json
from dataclasses import replace
from pathlib import Path

import pytest

from yolo_lightning.supervision.run_status import FitLength, Scores, Status, read_status, write_status

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


def test_status_comes_back_also_with_a_field_of_a_later_version(tmp_path: Path) -> None:
    write_status(STATUS, tmp_path / "status.json")
    assert read_status(tmp_path / "status.json") == STATUS
    assert STATUS.not_finite() == ["train/box_loss"]
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    content = json.loads((tmp_path / "status.json").read_text())
    (tmp_path / "status.json").write_text(json.dumps(content | {"later": 1}))
    assert read_status(tmp_path / "status.json") == STATUS


@pytest.mark.parametrize("every", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("epochs", [None, 1, 6, 7, 30])
def test_validations_after_an_epoch_are_those_of_its_successors(every: int | None, epochs: int | None) -> None:
    plan = FitLength(epochs, batches_per_epoch=10, validate_every_epochs=every, validations_per_epoch=2)
    for epoch in range(35):
        expected = 2 * sum(plan.is_validated(later) for later in range(epoch + 1, epochs or 0))
        assert plan.validations_after(epoch) == expected
    endless = FitLength(1 << 62, batches_per_epoch=10, validate_every_epochs=2, validations_per_epoch=1)
    assert endless.validations_after(0) == 1 << 61  # counted at once


def test_steps_of_a_partial_last_epoch() -> None:
    plan = FitLength(4, batches_per_epoch=10, validate_every_epochs=1, validations_per_epoch=1, last_epoch_batches=3)
    assert [plan.batches_of(epoch) for epoch in range(4)] == [10, 10, 10, 3]
    assert [plan.steps_after(epoch) for epoch in (-1, 0, 2, 3)] == [33, 23, 3, 0]


@pytest.mark.parametrize("name", ["written_s", "deadline_s"])
def test_status_with_an_impossible_moment_is_damaged(name: str, tmp_path: Path) -> None:
    write_status(replace(STATUS, **{name: 1e12}), tmp_path / "status.json")  # type: ignore[arg-type]
    assert read_status(tmp_path / "status.json") is None
