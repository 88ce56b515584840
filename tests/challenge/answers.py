"""A correct answer file for a small split; tests insert errors."""

import json
from pathlib import Path
from typing import Any

from yolo_lightning.challenge.content import Template

Answers = dict[str, dict[str, list[Any]]]

CONSECUTIVE = tuple(f"20200502114{minute:04d}{second:02d}" for minute in (2239, 2240) for second in range(60))
"""120 frames a second apart; a float64 makes 31 of them."""
APART = tuple(
    f"2021{month:02d}0{clip:02d}14{hour:02d}2957" for month in (1, 2) for clip in range(20) for hour in (7, 19)
)
"""80 frames, each the only one near its float64 or its value without seconds."""
WIDTH, HEIGHT = 384, 288


def template(image_ids: tuple[str, ...] = APART) -> Template:
    return Template(image_ids, (WIDTH, HEIGHT))


def answers(image_ids: tuple[str, ...] = APART) -> Answers:
    """Four detections per frame, one of each class, at the corners of the frame; every tenth frame has none."""
    corners = [
        [0.0, 0.0, 40.5, 60.25],
        [300.0, 5.0, 384.0, 50.0],
        [10.0, 200.0, 50.0, 288.0],
        [330.5, 220.0, 380.25, 280.0],
    ]
    right = {"boxes": corners, "scores": [0.9, 0.5, 0.05, 0.3], "labels": [1, 2, 3, 4]}
    return {
        image_id: json.loads(json.dumps({key: values if number % 10 else [] for key, values in right.items()}))
        for number, image_id in enumerate(image_ids, start=1)
    }


def write(folder: Path, content: Any, name: str = "predictions.json") -> Path:
    """Write JSON, or text as it is."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def in_layout(box: list[float], layout: str) -> list[float]:
    x_min, y_min, x_max, y_max = box
    if layout == "xywh":
        return [x_min, y_min, x_max - x_min, y_max - y_min]
    if layout == "cxcywh":
        return [(x_min + x_max) / 2, (y_min + y_max) / 2, x_max - x_min, y_max - y_min]
    return box


def with_boxes(content: Answers, layout: str = "xyxy", scale: tuple[float, float] = (1.0, 1.0)) -> Answers:
    """The answers with boxes of another layout and unit."""
    for entry in content.values():
        boxes = [in_layout(box, layout) for box in entry["boxes"]]
        entry["boxes"] = [[x * scale[0], y * scale[1], z * scale[0], w * scale[1]] for x, y, z, w in boxes]
    return content


def with_labels(content: Answers, shift: int) -> Answers:
    for entry in content.values():
        entry["labels"] = [label + shift for label in entry["labels"]]
    return content
