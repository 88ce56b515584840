"""Packed indexes of annotation files, and a comparison of targets with their annotations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from yolo_lightning.data.batch import Target
from yolo_lightning.data.formats.ltdv2 import read_annotations
from yolo_lightning.data.index.split_index import SplitIndex, open_index


def assert_boxes_of_the_json(targets: Sequence[Target], annotations: list[dict[str, Any]]) -> None:
    """Each target holds the boxes, to 1/1000 pixel, and the classes of its image; at least one box is compared."""
    compared = 0
    for target in targets:
        entries = [entry for entry in annotations if str(entry["image_id"]) == target.image_id]
        x, y, width, height = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4).T
        np.testing.assert_allclose(target.boxes.numpy(), np.stack((x, y, x + width, y + height), 1), rtol=0, atol=1e-3)
        assert target.labels.tolist() == [entry["category_id"] - 1 for entry in entries]
        compared += len(entries)
    assert compared > 0


def open_ltdv2(annotation_file: Path, index_root: Path) -> SplitIndex:
    """Open the packed index of an annotation file of LTDv2."""
    return open_index(annotation_file, index_root, read_annotations)
