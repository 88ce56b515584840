"""COCO's list of results, for any dataset but LTDv2: what `pycocotools`' `COCO.loadRes` reads."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from yolo_lightning.data.batch import Prediction, by_image
from yolo_lightning.utils.files import replacing

Detection = dict[str, int | float | str | list[float]]


def coco_results(
    predictions: Iterable[Prediction], image_ids: Sequence[int | str], category_ids: Sequence[int]
) -> list[Detection]:
    """One object for each detection: `image_id`, `category_id`, `bbox` (x, y, width, height, pixels), `score`.

    Boxes are rounded to 1/100 pixel, scores to 5 digits.

    Args:
        predictions: At most one for each image.
        image_ids: Of the split as the dataset's file has them, numbers or text; results are in their order.
        category_ids: Number of each class in the dataset's own files, index 0 first.

    Raises:
        ValueError: If a prediction is of an image that was not asked for, or of one twice.
    """
    found = by_image(predictions, [str(image_id) for image_id in image_ids])
    return [
        {"image_id": image_id} | detection
        for image_id, prediction in zip(image_ids, found.values(), strict=True)
        if prediction is not None
        for detection in detections(prediction, category_ids)
    ]


def detections(prediction: Prediction, category_ids: Sequence[int]) -> Iterator[Detection]:
    """The detections of one image, without its id."""
    corners, scores, labels = (getattr(prediction, name).tolist() for name in ("boxes", "scores", "labels"))
    for (left, top, right, bottom), score, label in zip(corners, scores, labels, strict=True):
        box = [round(side, 2) for side in (left, top, right - left, bottom - top)]
        yield {"category_id": category_ids[label], "bbox": box, "score": round(score, 5)}


def write_coco_results(results: Iterable[Detection], path: Path) -> None:
    """Write the file, whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(b"[\n" + b",\n".join(msgspec.json.encode(result) for result in results) + b"\n]\n")
