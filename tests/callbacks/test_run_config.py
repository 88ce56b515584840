"""`config.yaml`: readable for the owner only if an address in it contains credentials."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yolo_lightning.callbacks.run_config import SaveRunConfig


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        ({"mirror": "s3://bucket/runs"}, 0o644),
        ({"mirror": "sftp://user:word@host/runs"}, 0o600),
        ({"supervision": {"notify": {"webhook": "https://host/services/aB3dE6gH9jK1mN4p"}}}, 0o600),
        ({"supervision": {"notify": {"webhook": "$HOOK"}}}, 0o644),
    ],
)
def test_mode(content: dict[str, Any], mode: int, tmp_path: Path) -> None:
    callback = SaveRunConfig.__new__(SaveRunConfig)
    callback.__dict__["_content"] = content
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn=SimpleNamespace(value="fit")), default_root_dir=tmp_path)
    before = os.umask(0o022)
    try:
        callback.save_config(trainer, None, "fit")  # type: ignore[arg-type]
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "config.yaml").stat().st_mode) == mode
