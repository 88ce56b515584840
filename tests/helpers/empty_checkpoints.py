"""Checkpoint files without content."""

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from yolo_lightning.checkpoints.checkpoint_file import Checksum, checksum_path
from yolo_lightning.utils.files import write_json


def empty_checkpoint(run: str | Path, steps: int) -> Path:
    """Write an empty checkpoint with a valid checksum, as after `steps` steps, into a run folder."""
    path = Path(run) / "checkpoints" / f"step-{steps:09d}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    write_json(checksum_path(path), asdict(Checksum(sha256().hexdigest(), 0, 0, steps)))
    return path
