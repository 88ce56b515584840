"""Whether the GPU answers at all, tried in a child that can be ended."""

import os
import subprocess
from collections.abc import Sequence

from yolo_lightning.supervision.kill import kill_tree
from yolo_lightning.supervision.trainer import MARKER_VARIABLE, marker_of


def gpu_answers(command: Sequence[str], timeout_s: float, token: str) -> bool:
    """Run `command`, which does a little work on the GPU; False if it has not ended in time.

    One that ends with an error counts as an answer: the driver lives, and the trainer will say what is wrong.

    Raises:
        OSError: If it cannot be started.
    """
    child = subprocess.Popen(
        command,
        env=os.environ | {MARKER_VARIABLE: token},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    finally:
        kill_tree(child.pid, marker_of(token))
        child.poll()
    return True
