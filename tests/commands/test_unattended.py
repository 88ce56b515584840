"""The block that a run prints before it is left alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from yolo_lightning.commands.unattended import Cover, ends_at_logout, lines_of
from yolo_lightning.supervision import NotifySettings, SuperviseSettings

COVERED = Cover(
    run=Path("runs/x"),
    settings=SuperviseSettings(notify=NotifySettings(ping="$PING")),
    has_service=True,
    lingers=True,
    ends_at_logout=False,
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
        ({"has_service": False, "lingers": False, "ends_at_logout": True}, "logind ends the run"),
    ],
)
def test_each_gap_is_named(change: dict[str, object], expected: str) -> None:
    assert any(expected in line for line in lines_of(replace(COVERED, **change)) if line.startswith("  - "))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("KillUserProcesses=yes", True),
        ("#KillUserProcesses=yes", False),
        ("KillUserProcesses = no", False),
    ],
)
def test_last_setting_of_logind_counts(text: str, expected: bool, tmp_path: Path) -> None:
    extra = tmp_path / "etc/systemd/logind.conf.d/a.conf"
    extra.parent.mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=no\n")
    extra.write_text(f"[Login]\n{text}\n")
    assert ends_at_logout(tmp_path) is expected
