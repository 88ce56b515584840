"""What an exported file says about itself, in the words that Ultralytics' readers look for."""

import json
from importlib.metadata import version
from typing import Any

from yolo_lightning.boxes import STRIDE


def metadata(
    names: dict[int, str], *, image_size: int, channels: int, suppresses: bool, dynamic: bool
) -> dict[str, Any]:
    """Description of a detection network for the tools that open it.

    Args:
        names: Class names by index.
        image_size: Side of the input that it was made for, pixels.
        channels: Channels of the input.
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
        "imgsz": [image_size, image_size],
        "names": names,
        "channels": channels,
        "args": {"batch": 1, "dynamic": dynamic, "nms": suppresses},
        "end2end": False,
    }


def as_json(content: dict[str, Any]) -> str:
    """One JSON object."""
    return json.dumps(content)
