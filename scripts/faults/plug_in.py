"""Callback whose import hangs in every trainer, but not in the process that becomes the supervisor."""

from lightning.pytorch import Callback

from faults.hangs import sleep
from yolo_lightning.supervision.trainer import is_supervised


class PlugIn(Callback):
    """Callback without hooks."""


if is_supervised():
    sleep()
