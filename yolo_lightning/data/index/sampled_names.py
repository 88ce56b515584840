"""Sample of the frames of a split, for checks that do not read all of them."""

from collections.abc import Sequence
from hashlib import sha256
from heapq import nsmallest

from yolo_lightning.data.index.index_folder import encode


def sampled_positions(names: Sequence[str], count: int) -> list[int]:
    """Return the positions of `count` frames, or of all frames if there are fewer, given their names; ascending.

    The frames with the smallest hashes of their names are chosen. A fixed distance between the chosen frames would meet
    only one kind of frames in a split such as `000_ir.png`, `000_rgb.png`, `001_ir.png`, `001_rgb.png`, ...
    """
    if len(names) <= count:
        return list(range(len(names)))
    return sorted(nsmallest(count, range(len(names)), key=lambda position: sha256(encode(names[position])).digest()))
