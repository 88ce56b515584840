"""Report of checkpoints that could not be saved, while the trainer works."""

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from yolo_lightning.supervision.attempt import AttemptRunner
from yolo_lightning.supervision.heartbeat import HEARTBEAT_VARIABLE, NOT_STARTED
from yolo_lightning.supervision.job import Job
from yolo_lightning.supervision.unsaved_checkpoint import forget_unsaved, note_unsaved
from yolo_lightning.supervision.watch import Look


def test_failed_save_and_its_end_are_notified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = tmp_path / "heartbeat"
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(heartbeat))
    services = Mock()
    job = Job(("program",), ("program",))
    runner = AttemptRunner(tmp_path / "run", job, "token", services)
    runner._heartbeat_path = heartbeat
    look = Look(NOT_STARTED)

    def report() -> list[str]:
        services.reset_mock()
        runner._report_unsaved(look)
        runner._report_unsaved(look)
        return [" | ".join(call.args) for call in services.announcer.tell.call_args_list]

    path = tmp_path / "run" / "checkpoints" / "step-000000009.ckpt"
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
    assert report() == []
    note_unsaved("last.ckpt", path, read_only)
    note_unsaved("last.ckpt", path.with_name("step-000000018.ckpt"), read_only)
    assert report() == [
        f"checkpoint not saved | could not save {path} (Read-only file system); there is no older checkpoint"
    ]
    note_unsaved("best.ckpt", path.with_name("best.ckpt"), read_only)
    forget_unsaved("last.ckpt")
    assert report() == []
    forget_unsaved("best.ckpt")
    assert report() == ["checkpoints are saved again | after 0 min"]
    outcomes = [json.loads(call.args[2])["outcome"] for call in services.disk.post.call_args_list]
    assert outcomes == ["saved again after 0 min"]
