"""The block that a run prints before it is left alone."""

import re
from pathlib import Path

import pytest

from yolo_lightning.commands import unattended as module
from yolo_lightning.commands.unattended import unattended
from yolo_lightning.supervision.announcer import ENDS
from yolo_lightning.supervision.job import SuperviseSettings
from yolo_lightning.supervision.notify import NotifySettings
from yolo_lightning.utils.exit_codes import of_signal
from yolo_lightning.utils.sensors import Capacity
from yolo_lightning.utils.stop_signals import STOP_SIGNALS

NOTIFIED = SuperviseSettings(notify=NotifySettings(ping="$PING"))


@pytest.mark.parametrize(
    ("settings", "has_service", "lingers", "gap"),
    [
        (NOTIFIED, True, True, ""),
        (SuperviseSettings(), True, True, "nobody is told"),
        (NOTIFIED, False, True, "kill of the supervisor ends the run: "),
        (NOTIFIED, True, False, "the service starts at the log-in"),
    ],
)
def test_each_gap_is_named(
    settings: SuperviseSettings,
    has_service: bool,
    lingers: bool,
    gap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000001.ckpt").write_bytes(bytes(1000))
    monkeypatch.setattr(module, "lingers", lambda: lingers)
    monkeypatch.setattr(module.sensors, "disk", lambda _: Capacity(5_500, 9_000))
    lines = unattended(tmp_path, settings, has_service=has_service)
    gaps = [line for line in lines if line.startswith("  - ")]
    assert len(gaps) == (1 if gap else 0)
    assert gap in "".join(gaps)
    ends = "\n".join(lines).partition("The run ends (exit code):")[2]
    codes = {of_signal(number) for number in STOP_SIGNALS} | set(ENDS)
    assert codes <= set(map(int, re.findall(r"\d+", ends))), "every end of next_action"
    assert any("0.0 GB are free, enough for 3 checkpoints" in line for line in lines)
