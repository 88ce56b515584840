"""COCO's results list, as `COCO.loadRes` of pycocotools reads it; used for all datasets except LTDv2."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from yolo_lightning.data.batch import Prediction, by_image
from yolo_lightning.utils.files import write_bytes

Detection = dict[str, int | float | str | list[float]]


def coco_results(
    predictions: Iterable[Prediction], image_ids: Sequence[int | str], category_ids: Sequence[int]
) -> list[Detection]:
    """Return `image_id`, `category_id`, `bbox` (x, y, width, height in pixels) and `score` of each detection.

    Boxes are rounded to 1/100 pixel, scores to 5 digits. Results are in the order of `image_ids`, the ids of the split
    as in the dataset's file, numbers or text. `category_ids` contains the category id of each class in that file.
    """
    by_id = by_image(predictions, [str(image_id) for image_id in image_ids])
    results: list[Detection] = []
    for image_id in image_ids:
        prediction = by_id[str(image_id)]
        if prediction is not None:
            categories = [category_ids[label] for label in prediction.labels.tolist()]
            results += coco_detections(image_id, prediction.boxes.tolist(), prediction.scores.tolist(), categories)
    return results


def coco_detections(
    image_id: int | str, boxes: list[list[float]], scores: list[float], category_ids: list[int]
) -> list[Detection]:
    """Return the entries of one image; see `coco_results`. `boxes` are xyxy."""
    results: list[Detection] = []
    for (x1, y1, x2, y2), score, category in zip(boxes, scores, category_ids, strict=True):
        box = [round(side, 2) for side in (x1, y1, x2 - x1, y2 - y1)]
        results.append({"image_id": image_id, "category_id": category, "bbox": box, "score": round(score, 5)})
    return results


def write_coco_results(results: Iterable[Detection], path: Path) -> None:
    """Write the file atomically, one detection per line; create its folder."""
    write_bytes(path, b"[\n" + b",\n".join(msgspec.json.encode(result) for result in results) + b"\n]\n")
