"""Frame ids and annotated boxes of a split, from COCO JSON, the organisers' template or their file of targets.

Boxes are used unchanged, neither clipped nor dropped, as in the organisers' evaluation.
"""

from pathlib import Path

import msgspec
import numpy as np

from yolo_lightning.challenge.content import CATEGORY_IDS, LTDV2_FRAME_SIZE, Content, Template
from yolo_lightning.data.formats.annotation_file import BYTE_ORDER_MARK, decode
from yolo_lightning.data.formats.image_ids import id_text, image_id_texts, unknown_image_hint

FrameSize = tuple[int, int] | None


class TruthEntry(msgspec.Struct, gc=False):
    """Value of one image id in the organisers' files; a template has empty lists."""

    boxes: list[tuple[float, float, float, float]]
    labels: list[int]


def read_truth(path: Path) -> tuple[Template, Content]:
    """Return the frames and objects of a split from its JSON, or from the organisers' template or file of targets.

    Raises:
        ValueError: If the file has another format; the message names the record.
    """
    try:
        data = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
        outermost = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is neither the JSON of a split nor an object keyed by image id: {error}") from error
    frame_size, truth = read_coco(path) if "images" in outermost else read_keyed(path, outermost)
    wrong = np.flatnonzero(~np.isin(truth.labels, CATEGORY_IDS))
    if len(wrong):
        image_id = truth.image_ids[truth.owners[wrong[0]]]
        raise ValueError(f"{path}: category of image {image_id} must be 1, 2, 3 or 4, got {truth.labels[wrong[0]]:g}")
    return Template(truth.image_ids, frame_size), truth


def read_keyed(path: Path, entries: dict[str, msgspec.Raw]) -> tuple[FrameSize, Content]:
    decoder = msgspec.json.Decoder(TruthEntry)
    counts, boxes, labels = [], [], []
    for image_id, raw in entries.items():
        try:
            entry = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}: image {image_id} must have boxes and labels: {error}") from error
        if len(entry.boxes) != len(entry.labels):
            raise ValueError(f"{path}: image {image_id} has {len(entry.boxes)} boxes and {len(entry.labels)} labels")
        counts.append(len(entry.labels))
        boxes += entry.boxes
        labels += entry.labels
    owners = np.repeat(np.arange(len(entries)), counts)
    corners = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    content = Content(tuple(entries), owners, corners, np.ones(len(labels)), np.array(labels, dtype=np.float64))
    return LTDV2_FRAME_SIZE, content


def read_coco(path: Path) -> tuple[FrameSize, Content]:
    file = decode(path)
    positions = image_id_texts(path, [one.id for one in file.images], [one.file_name for one in file.images])
    owners = np.empty(len(file.annotations), dtype=np.int64)
    for number, annotation in enumerate(file.annotations):
        position = positions.get(id_text(annotation.image_id) or "")
        if position is None:
            hint = unknown_image_hint(annotation.image_id, positions)
            raise ValueError(f"{path}: annotations[{number}] has unknown image_id {annotation.image_id}{hint}")
        owners[number] = position
    labels = np.array([one.category_id for one in file.annotations], dtype=np.float64)
    boxes = np.array([one.bbox for one in file.annotations], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    sizes = {(image.width, image.height) for image in file.images}
    order = np.argsort(owners, kind="stable")
    content = Content(tuple(positions), owners, boxes, np.ones(len(labels)), labels).take(order)
    return sizes.pop() if len(sizes) == 1 else None, content
