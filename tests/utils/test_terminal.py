"""Terminals with and without cursor control."""

import os
import pty
import subprocess
import sys

import pytest

from yolo_lightning.utils.terminal import has_cursor_control

CODE = (
    "import sys; from yolo_lightning.utils.terminal import has_cursor_control; sys.exit(has_cursor_control(sys.stdout))"
)


@pytest.mark.parametrize(
    ("name", "has_control"),
    [("xterm", True), ("no-such-terminal", True), ("dumb", False), ("unknown", False), ("", False)],
)
def test_progress_is_drawn_over_only_with_cursor_control(name: str, has_control: bool) -> None:
    reading, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", CODE], stdout=terminal, env={**os.environ, "TERM": name}, timeout=60
        )
    finally:
        os.close(reading)
        os.close(terminal)
    assert bool(done.returncode) == has_control


def test_pipe_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with open(os.devnull, "w") as stream:
        assert not has_cursor_control(stream)
