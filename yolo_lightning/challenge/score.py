"""Score of a submission, which equals that of the organisers' server."""

import numpy as np

from yolo_lightning.challenge.content import CATEGORY_IDS, Content
from yolo_lightning.data.formats.image_ids import month_of_id
from yolo_lightning.evaluation.matching import BoxTable, Matches, match_frames, sized


def match_submission(content: Content, truth: Content) -> Matches:
    """Match a checked content with corners in pixels, labels 1 to 4 and finite numbers.

    Frames of the split that the content lacks have no detections, other frames are ignored. Inverted boxes and boxes
    without area match no object. The month of a frame is part of its id.
    """
    detections = box_table(content.with_frames(truth.image_ids))
    return match_frames(detections, box_table(truth), len(CATEGORY_IDS), list(map(month_of_id, truth.image_ids)))


def box_table(content: Content) -> BoxTable:
    """Return boxes as float32 and category ids as class indices from 0."""
    return BoxTable(
        np.bincount(content.owners, minlength=len(content.image_ids)),
        sized(content.boxes.astype(np.float32)),
        content.labels.astype(np.int64) - CATEGORY_IDS[0],
        content.scores.astype(np.float32),
    )
