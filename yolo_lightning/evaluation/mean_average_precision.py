"""Dataset mean average precision as LTDv2's organisers compute it: COCO's, by torchmetrics."""

from collections.abc import Sequence

from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

from yolo_lightning.batch import Prediction, Target

SCALARS = ("map", "map_50", "map_75", "mar_1", "mar_10", "mar_100")
NO_GROUND_TRUTH = -1.0
"""What COCO evaluation answers where nothing was annotated."""


def new_metric() -> MeanAveragePrecision:
    """The organisers' metric, computed by faster-coco-eval; at most 100 detections per image and class count."""
    metric = MeanAveragePrecision(box_format="xyxy", iou_type="bbox", backend="faster_coco_eval", extended_summary=True)
    metric.warn_on_many_detections = False
    return metric


def update(metric: MeanAveragePrecision, predictions: Sequence[Prediction], targets: Sequence[Target]) -> None:
    """Add frames; `predictions` and `targets` are of the same frames in the same order."""
    assert [prediction.image_id for prediction in predictions] == [target.image_id for target in targets]
    metric.update(
        [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in predictions],
        [{"boxes": one.boxes, "labels": one.labels} for one in targets],
    )


def scores(metric: MeanAveragePrecision, class_names: Sequence[str]) -> dict[str, float]:
    """All scores of the frames added so far.

    Args:
        metric: From `new_metric`.
        class_names: Index 0 first.

    Returns:
        `map` (IoU 0.50 to 0.95), `map_50`, `map_75`, `mar_1`, `mar_10`, `mar_100`, and `map/<class>` and
        `map_50/<class>` for every annotated class, 0 to 1; -1 where nothing was annotated.
    """
    result = metric.compute()
    values = {name: float(result[name]) for name in SCALARS}
    if "precision" not in result:
        return values
    precision: Tensor = result["precision"][:, :, :, 0, -1]  # (IoU, recall, class), all areas, 100 detections
    for position, label in enumerate(result["classes"].reshape(-1).tolist()):
        of_class = precision[:, :, position]
        if (of_class > NO_GROUND_TRUTH).any():
            values[f"map/{class_names[label]}"] = float(of_class.mean())
            values[f"map_50/{class_names[label]}"] = float(of_class[0].mean())
    return values


def as_table(values: dict[str, float]) -> list[tuple[str, str]]:
    """Name and value of each score, for printing."""
    return [(name, "no ground truth" if value == NO_GROUND_TRUTH else f"{value:.4f}") for name, value in values.items()]
