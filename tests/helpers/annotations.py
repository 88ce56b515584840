"""Compares targets with the annotations that they come from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from yolo_lightning.data.batch import Target


def assert_boxes_of_the_json(found: Sequence[Target], annotations: list[dict[str, Any]]) -> None:
    """Each target holds the boxes, to 1/1000 pixel, and the classes of its image; at least one box is compared."""
    compared = 0
    for target in found:
        own = [entry for entry in annotations if str(entry["image_id"]) == target.image_id]
        x, y, width, height = np.array([entry["bbox"] for entry in own]).reshape(-1, 4).T
        np.testing.assert_allclose(target.boxes.numpy(), np.stack((x, y, x + width, y + height), 1), rtol=0, atol=1e-3)
        assert target.labels.tolist() == [entry["category_id"] - 1 for entry in own]
        compared += len(own)
    assert compared > 0
