"""What an exported file says about itself, in the words that Ultralytics' readers look for."""

import json
from importlib.metadata import version
from typing import Any

from yolo_lightning.data.boxes import STRIDE
from yolo_lightning.model.graph import OWN_SETTINGS
from yolo_lightning.model.network_settings import NetworkSettings


def metadata(settings: NetworkSettings, *, suppresses: bool, dynamic: bool) -> dict[str, Any]:
    """Description of a detection network for the tools that open it.

    Args:
        settings: Of the weights, with image size and channels of the file's input.
        suppresses: Whether non-maximum suppression is part of it.
        dynamic: Whether the batch may have any size.
    """
    return {
        "description": "YOLOv8 detection network, trained with yolo_lightning",
        "author": "yolo_lightning",
        "version": version("ultralytics"),
        "license": "AGPL-3.0-or-later",
        "stride": STRIDE,
        "task": "detect",
        "batch": 1,
        "imgsz": [settings.image_size, settings.image_size],
        "names": dict(enumerate(settings.class_names)),
        "channels": settings.channels,
        "args": {"batch": 1, "dynamic": dynamic, "nms": suppresses},
        "end2end": False,
        OWN_SETTINGS: settings.plain(),
    }


def as_json(content: dict[str, Any]) -> str:
    """One JSON object."""
    return json.dumps(content)
