"""The command `bootstrap`: intervals of a stored evaluation."""

from pathlib import Path

import pytest

from tests.evaluation.detections import CLASS_NAMES, OBJECT, prediction, target
from yolo_lightning.cli import main
from yolo_lightning.evaluation.matching import match
from yolo_lightning.evaluation.record import EvaluationRecord
from yolo_lightning.evaluation.ultralytics_matching import match_as_ultralytics

MONTHS = {202101: 1, 202102: 3, 202006: 4}
"""Number of clips."""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with a validation in which every second clip is detected."""
    predictions, targets = [], []
    for month, clips in MONTHS.items():
        for clip in range(clips):
            image_id = f"{month}{clip:03d}14120000"
            predictions.append(prediction(image_id, OBJECT + 500 * (clip % 2), [0.5], [0]))
            targets.append(target(image_id, OBJECT, [0], month))
    classes = len(CLASS_NAMES)
    record = EvaluationRecord(
        "val",
        tuple(CLASS_NAMES),
        tuple(entry.image_id for entry in targets),
        match(predictions, targets, classes),
        match_as_ultralytics(predictions, targets, classes),
    )
    record.save(tmp_path / "evaluations/val.npz")
    return tmp_path


def test_intervals_are_shown(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bootstrap", str(run_folder), "--samples", "200"]
    main(words)
    first = capsys.readouterr().out
    assert "too narrow, because of one clip only: 2021-01" in first
    cells = [line.split() for line in first.splitlines() if line.strip()]
    rows = {name: list(map(float, numbers)) for name, *numbers in cells if len(numbers) == 4}
    months = [f"map_50/{month}" for month in ("2020-06", "2021-01", "2021-02")]
    assert set(rows) == {"map_50", *months, "cov", "balanced"}
    score, low, _, high = rows["map_50/2020-06"]
    assert low < score < high
    assert rows["map_50/2021-01"] == [1.0] * 4
    main(words)
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "test"], "contains no evaluations/test.npz: run `test` first"),
        (["--stage", "train"], "stage must be val or test, got 'train'"),
        (["--samples", "10"], "samples must be >= 100, got 10"),
        (["--confidence", "1"], "confidence must be > 0 and < 1, got 1.0"),
    ],
)
def test_what_is_not_allowed_is_said(
    words: list[str], message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bootstrap", str(run_folder), *words])
    assert message in capsys.readouterr().err
