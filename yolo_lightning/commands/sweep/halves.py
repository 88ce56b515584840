"""Two halves of a split that share no clip, as neighbours in a clip are near duplicates."""

import numpy as np
import numpy.typing as npt

from yolo_lightning.data.index.annotation_index import SplitIndex
from yolo_lightning.data.index.splits import choose_clips


def first_half(index: SplitIndex) -> npt.NDArray[np.bool_]:
    """`(frames,)` whether a frame is of the first half: half of each month's clips, at least one, by a hash of names.

    The same for every run and machine. A month with one clip is in the first half alone.

    Args:
        index: Of the split, which may be a part of a file.
    """
    return np.isin(index.clips(), choose_clips(index, 0.5))
