"""Frames that are left out because training ended at them, named by whoever noticed."""

from collections.abc import Iterable

from yolo_lightning.data.index.annotation_index import SplitIndex
from yolo_lightning.data.index.splits import Split

ALLOWED = "id=<image id> and index=<place of a training frame, from 0>"


def check_names(suspects: Iterable[str]) -> None:
    """Refuse what names no frame.

    Raises:
        ValueError: If an entry is neither `id=<image id>` nor `index=<number>`.
    """
    for suspect in suspects:
        kind, _, value = suspect.partition("=")
        if not value or kind not in ("id", "index") or (kind == "index" and not value.isdecimal()):
            raise ValueError(f"data.quarantine holds {suspect!r}, allowed are {ALLOWED}")


def places(suspects: Iterable[str], index: SplitIndex, split: Split) -> frozenset[int]:
    """Frames of a split that `suspects` name.

    Args:
        suspects: As `check_names` allows them; a place counts in the training split only.
        index: Of the split.
        split: Which it is.
    """
    named = [suspect.partition("=") for suspect in suspects]
    found = {int(value) for kind, _, value in named if kind == "index" and split == "train"}
    ids = {value for kind, _, value in named if kind == "id"}
    if ids:
        found |= {place for place, image_id in enumerate(index.image_ids()) if image_id in ids}
    return frozenset(place for place in found if place < len(index))
