"""The installed command, or Python code, as a process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.trainer import MARKER_VARIABLE

COMMAND = ("-m", "yolo_lightning")


def run_python(folder: Path, *words: str, timeout_s: float = 170.0) -> subprocess.CompletedProcess[str]:
    """Run Python with this package in a folder; modules of that folder are found, too."""
    environment = {name: value for name, value in os.environ.items() if name != MARKER_VARIABLE}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
