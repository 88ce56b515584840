"""The block that a run prints before it is left alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from yolo_lightning.commands.unattended import Cover, lines_of
from yolo_lightning.supervision import NotifySettings, SuperviseSettings

COVERED = Cover(
    run=Path("runs/x"),
    settings=SuperviseSettings(notify=NotifySettings(ping="$PING")),
    has_service=True,
    lingers=True,
    free_bytes=10_000_000_000,
    checkpoint_bytes=3_000_000_000,
)


def test_covered_run_has_no_open_points() -> None:
    lines = lines_of(COVERED)
    assert not [line for line in lines if line.startswith("  - ")]
    assert any("10.0 GB are free, enough for 3 checkpoints" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"settings": SuperviseSettings()}, "nobody is told"),
        ({"has_service": False}, "service install runs/x"),
        ({"lingers": False}, "the service starts at the log-in"),
    ],
)
def test_each_gap_is_named(change: dict[str, object], expected: str) -> None:
    assert any(expected in line for line in lines_of(replace(COVERED, **change)) if line.startswith("  - "))  # type: ignore[arg-type]
