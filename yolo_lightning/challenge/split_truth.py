"""What a split asks for and knows: the ids of its frames and its annotated boxes, from any file that holds them.

These are a split's JSON (COCO's layout), the organisers' template, and the file of targets that their formatter makes.
Boxes are taken as they are, neither clipped nor dropped, as the organisers take them.
"""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from yolo_lightning.challenge.content import CATEGORY_IDS, LTDV2_FRAME_SIZE, Template, Truth
from yolo_lightning.data.formats.annotation_file import BYTE_ORDER_MARK, decode
from yolo_lightning.data.formats.image_ids import id_text, image_id_texts, unknown_image_hint


class TruthEntry(msgspec.Struct, gc=False):
    """Value of one image id in the organisers' files; a template has empty lists."""

    boxes: list[tuple[float, float, float, float]]
    labels: list[int]


def read_truth(path: Path) -> Truth:
    """Read a split's JSON, or the organisers' file of targets or template.

    Raises:
        ValueError: If the file is none of them; the message names the record.
    """
    keyed = read_keyed(path)
    return read_coco(path) if keyed is None else from_keyed(path, keyed)


def read_keyed(path: Path) -> dict[str, TruthEntry] | None:
    """The organisers' files; null for a file that has `images` as COCO has.

    Raises:
        ValueError: If it is neither.
    """
    try:
        data = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
        outermost = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is neither a split's JSON nor an object keyed by image id: {error}") from error
    if "images" in outermost:
        return None
    decoder = msgspec.json.Decoder(TruthEntry)
    result = {}
    for image_id, raw in outermost.items():
        try:
            entry = result[image_id] = decoder.decode(raw)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}: image {image_id} has not the form of boxes and labels: {error}") from error
        if len(entry.boxes) != len(entry.labels):
            raise ValueError(f"{path}: image {image_id} has {len(entry.boxes)} boxes and {len(entry.labels)} labels")
    return result


def from_keyed(path: Path, entries: dict[str, TruthEntry]) -> Truth:
    """The truth that the organisers' file holds."""
    counts = [len(entry.labels) for entry in entries.values()]
    boxes = np.array([box for entry in entries.values() for box in entry.boxes], dtype=np.float64).reshape(-1, 4)
    labels = np.array([label for entry in entries.values() for label in entry.labels], dtype=np.int64)
    owners = np.repeat(np.arange(len(entries)), counts)
    ids = tuple(entries)
    refuse_labels(path, labels, [ids[owner] for owner in owners[~np.isin(labels, CATEGORY_IDS)][:1]])
    return Truth(Template(ids, LTDV2_FRAME_SIZE), owners, boxes, labels)


def read_coco(path: Path) -> Truth:
    """The truth of a split's JSON.

    Raises:
        ValueError: If the file cannot be used; the message names the record.
    """
    content = decode(path)
    positions = image_id_texts(path, [one.id for one in content.images], [one.file_name for one in content.images])
    owners = np.empty(len(content.annotations), dtype=np.int64)
    for number, annotation in enumerate(content.annotations):
        position = positions.get(id_text(annotation.image_id) or "")
        if position is None:
            hint = unknown_image_hint(annotation.image_id, positions)
            raise ValueError(f"{path}: annotations[{number}] belongs to unknown image_id {annotation.image_id}{hint}")
        owners[number] = position
    labels = np.array([one.category_id for one in content.annotations], dtype=np.int64)
    boxes = np.array([one.bbox for one in content.annotations], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    ids = tuple(positions)
    refuse_labels(path, labels, [ids[owner] for owner in owners[~np.isin(labels, CATEGORY_IDS)][:1]])
    sizes = {(image.width, image.height) for image in content.images}
    order = np.argsort(owners, kind="stable")
    frame_size = sizes.pop() if len(sizes) == 1 else None
    return Truth(Template(ids, frame_size), owners[order], boxes[order], labels[order])


def refuse_labels(path: Path, labels: npt.NDArray[np.int64], first_images: list[str]) -> None:
    """Refuse categories that are none of LTDv2's classes.

    Raises:
        ValueError: If there are any; `first_images` then names one image.
    """
    wrong = labels[~np.isin(labels, CATEGORY_IDS)]
    if len(wrong):
        raise ValueError(f"{path}: image {first_images[0]} has category {wrong[0]}, allowed are {CATEGORY_IDS}")
