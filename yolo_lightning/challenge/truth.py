"""Ground truth of a split.

Boxes are used unchanged, neither clipped nor dropped, as in the organisers' evaluation.
"""

from pathlib import Path

import msgspec
import numpy as np

from yolo_lightning.challenge.content import CATEGORY_IDS, LTDV2_FRAME_SIZE, Content, Template
from yolo_lightning.challenge.reading import arrays, join
from yolo_lightning.data.formats.coco_json import BYTE_ORDER_MARK, LARGEST_FILE, UNDECODABLE, decode, owners
from yolo_lightning.data.formats.image_ids import image_id_texts
from yolo_lightning.errors import UserError
from yolo_lightning.utils.plain_text import ZIP_START, one_line
from yolo_lightning.utils.regular_files import read_regular

FrameSize = tuple[int, int] | None


class TruthEntry(msgspec.Struct, gc=False):
    """Value of one image id in the organisers' files; a template has empty lists."""

    boxes: list[tuple[float, float, float, float]]
    labels: list[int]
    scores: list[float] = []  # of a submission, which is refused


def read_truth(path: Path) -> tuple[Template, Content]:
    """Return the frames and objects of a split from its JSON, or from the organisers' template or file of targets."""
    try:
        data = read_regular(path, LARGEST_FILE).removeprefix(BYTE_ORDER_MARK)
        outermost = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UNDECODABLE as error:
        reason = one_line(str(error))
        if data.startswith(b"["):
            reason = "it contains a list, as files of detections do"
        if data.startswith(ZIP_START):
            reason = "it is a zip archive, as submissions are"
        raise UserError(f"{path} is neither the JSON of a split nor an object keyed by image id: {reason}") from error
    try:
        if "images" in outermost:
            frame_size, truth = _read_coco(path)
        else:
            frame_size, truth = _read_keyed(path, outermost)
    except OverflowError as error:
        raise UserError(f"{path} contains a number that is too large") from error
    except ValueError as error:  # ids and values in the message are of unknown length
        raise UserError(one_line(str(error))) from error
    wrong = np.flatnonzero(~np.isin(truth.labels, CATEGORY_IDS))
    if len(wrong):
        image_id = one_line(truth.image_ids[truth.owners[wrong[0]]], 200)
        raise UserError(f"{path}: category of image {image_id} must be 1, 2, 3 or 4, got {truth.labels[wrong[0]]:g}")
    return Template(truth.image_ids, frame_size), truth


def _read_keyed(path: Path, entries: dict[str, msgspec.Raw]) -> tuple[FrameSize, Content]:
    decoder = msgspec.json.Decoder(TruthEntry)
    chunks = {}
    for image_id, raw in entries.items():
        try:
            entry = decoder.decode(raw)
        except UNDECODABLE as error:
            raise UserError(f"{path}: image {image_id} must have boxes and labels: {error}") from error
        if entry.scores:
            raise UserError(f"{path} contains detections with scores, as submissions do, and no annotations")
        if len(entry.boxes) != len(entry.labels):
            raise UserError(f"{path}: image {image_id} has {len(entry.boxes)} boxes and {len(entry.labels)} labels")
        chunks[image_id] = arrays(entry.boxes, [1.0] * len(entry.labels), entry.labels)
    return LTDV2_FRAME_SIZE, join(chunks)


def _read_coco(path: Path) -> tuple[FrameSize, Content]:
    file = decode(path)
    records = file.annotations or []
    positions = image_id_texts(path, [image.id for image in file.images], [image.file_name for image in file.images])
    owner = owners(path, records, positions)
    labels = np.array([record.category_id for record in records], dtype=np.float64)
    boxes = np.array([record.bbox for record in records], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    sizes = {(int(image.width), int(image.height)) for image in file.images}
    order = np.argsort(owner, kind="stable")
    content = Content(tuple(positions), owner, boxes, np.ones(len(labels)), labels).take(order)
    frame_size = sizes.pop() if len(sizes) == 1 else None
    return frame_size, content
