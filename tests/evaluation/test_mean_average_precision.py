from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics.detection import MeanAveragePrecision

from yolo_lightning.batch import Prediction, Target
from yolo_lightning.evaluation.mean_average_precision import as_table, new_metric, scores, update

CLASS_NAMES = ["person", "bicycle", "motorcycle", "vehicle"]
SCALARS = ["map", "map_50", "map_75", "mar_1", "mar_10", "mar_100"]
TARGET = torch.tensor([[0.0, 0.0, 100.0, 100.0]])


def prediction(name: str, boxes: Any, values: Any, labels: Any) -> Prediction:
    return Prediction(
        name, torch.as_tensor(boxes).float().reshape(-1, 4), torch.tensor(values), torch.tensor(labels).long()
    )


def target(name: str, boxes: Any, labels: Any) -> Target:
    return Target(name, torch.as_tensor(boxes).float().reshape(-1, 4), torch.tensor(labels).long())


def score(predictions: Sequence[Prediction], targets: Sequence[Target]) -> dict[str, float]:
    metric = new_metric()
    update(metric, predictions, targets)
    return scores(metric, CLASS_NAMES)


def random_boxes(count: int, generator: torch.Generator) -> Tensor:
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([300.0, 220.0])
    return torch.cat([corner, corner + 4 + torch.rand(count, 2, generator=generator) * 60], 1)


def random_frames(seed: int, frames: int = 12) -> tuple[list[Prediction], list[Target]]:
    """Class 2 is predicted but never annotated; some frames are empty; up to 120 detections in one."""
    generator = torch.Generator().manual_seed(seed)
    predictions, targets = [], []
    for number in range(frames):
        count = int(torch.randint(0, 9, (), generator=generator))
        boxes = random_boxes(count, generator)
        labels = torch.tensor([0, 1, 3])[torch.randint(0, 3, (count,), generator=generator)]
        extra = 120 if number == 3 else int(torch.randint(0, 6, (), generator=generator))
        found = torch.cat([boxes + torch.randn(count, 4, generator=generator) * 3, random_boxes(extra, generator)])
        guesses = torch.cat([labels, torch.randint(0, 4, (extra,), generator=generator)])
        values = torch.rand(count + extra, generator=generator)
        predictions.append(Prediction(str(number), found, values, guesses))
        targets.append(Target(str(number), boxes, labels))
    return predictions, targets


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_equal_those_of_torchmetrics_with_class_metrics(seed: int) -> None:
    predictions, targets = random_frames(seed)
    ours = score(predictions, targets)
    reference = MeanAveragePrecision(backend="faster_coco_eval", class_metrics=True)
    reference.warn_on_many_detections = False
    reference.update(
        [{"boxes": one.boxes, "scores": one.scores, "labels": one.labels} for one in predictions],
        [{"boxes": one.boxes, "labels": one.labels} for one in targets],
    )
    result = reference.compute()
    expected = {name: float(result[name]) for name in SCALARS}
    per_class = zip(result["classes"].tolist(), result["map_per_class"].tolist(), strict=True)
    expected |= {f"map/{CLASS_NAMES[label]}": value for label, value in per_class if value >= 0}
    assert 0.1 < expected["map"] < 0.9, "the case is too easy"
    assert len(expected) == len(SCALARS) + 3
    assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_class_scores_at_half_overlap_average_to_the_total(seed: int) -> None:
    ours = score(*random_frames(seed))
    per_class = [value for name, value in ours.items() if name.startswith("map_50/")]
    assert len(per_class) == 3
    assert sum(per_class) / 3 == pytest.approx(ours["map_50"], abs=1e-6)


def test_hand_computed_case() -> None:
    """One object is found with IoU 0.72, after a false alarm that scores more.

    At thresholds 0.50, 0.55, 0.60, 0.65, 0.70 precision is 1/2 at every recall, at the other five 0.
    """
    found = prediction("a", [[0, 0, 72, 100], [200, 200, 260, 260]], [0.6, 0.9], [0, 0])
    values = score([found], [target("a", TARGET, [0])])
    assert values == pytest.approx(
        {
            "map": 0.25,
            "map_50": 0.5,
            "map_75": 0.0,
            "mar_1": 0.0,
            "mar_10": 0.5,
            "mar_100": 0.5,
            "map/person": 0.25,
            "map_50/person": 0.5,
        },
        abs=1e-6,
    )


def test_exact_boxes_score_one() -> None:
    values = score([prediction("a", TARGET, [0.3], [3])], [target("a", TARGET, [3])])
    assert set(values.values()) == {1.0}


def test_right_box_of_the_wrong_class_scores_nothing() -> None:
    values = score([prediction("a", TARGET, [0.9], [1])], [target("a", TARGET, [0])])
    assert values["map_50"] == 0


def test_class_without_ground_truth_is_left_out() -> None:
    found = prediction("a", TARGET.repeat(2, 1), [0.9, 0.8], [0, 2])
    values = score([found], [target("a", TARGET, [0])])
    assert values["map_50"] == 1
    assert [name for name in values if "/" in name] == ["map/person", "map_50/person"]


def test_annotated_class_that_is_never_found_scores_zero() -> None:
    values = score([prediction("a", TARGET, [0.9], [0])], [target("a", TARGET.repeat(2, 1), [0, 3])])
    assert (values["map_50"], values["map_50/vehicle"]) == (0.5, 0.0)


def test_nothing_annotated_is_minus_one() -> None:
    values = score([prediction("a", TARGET, [0.9], [0])], [target("a", [], [])])
    assert values == dict.fromkeys(SCALARS, -1.0)


def test_nothing_annotated_and_nothing_found_is_minus_one() -> None:
    assert score([prediction("a", [], [], [])], [target("a", [], [])]) == dict.fromkeys(SCALARS, -1.0)


def test_no_frame_at_all_is_minus_one() -> None:
    assert score([], []) == dict.fromkeys(SCALARS, -1.0)


def test_dataset_score_is_no_mean_of_batches() -> None:
    """A false alarm in a second batch without objects ranks before the hit of the first."""
    frames = [
        (prediction("a", TARGET, [0.5], [0]), target("a", TARGET, [0])),
        (prediction("b", TARGET, [0.9], [0]), target("b", TARGET + 200, [0])),
    ]
    alone = [score([found], [truth])["map_50"] for found, truth in frames]
    metric = new_metric()
    for found, truth in frames:
        update(metric, [found], [truth])
    together = scores(metric, CLASS_NAMES)["map_50"]
    assert sum(alone) / 2 == 0.5
    assert together == pytest.approx(0.5 * 51 / 101, abs=1e-6)  # recall 0 to 0.5 of 101 points, at precision 1/2


def test_order_of_frames_must_agree() -> None:
    found = [prediction(name, TARGET, [0.9], [0]) for name in "ab"]
    truth = [target(name, TARGET, [0]) for name in "ba"]
    with pytest.raises(AssertionError):
        update(new_metric(), found, truth)


def test_hundred_detections_per_class_count_not_per_frame() -> None:
    """100 better alarms of another class do not push the hit out."""
    alarms = torch.cat([TARGET + 200 + number for number in range(100)])
    found = prediction("a", torch.cat([alarms, TARGET]), [0.9] * 100 + [0.5], [1] * 100 + [0])
    assert score([found], [target("a", TARGET, [0])])["map_50"] == 1


def test_detections_beyond_the_hundred_best_of_a_class_do_not_count() -> None:
    alarms = torch.cat([TARGET + 200 + number for number in range(100)])
    found = prediction("a", torch.cat([alarms, TARGET]), [0.9] * 100 + [0.5], [0] * 101)
    assert score([found], [target("a", TARGET, [0])])["mar_100"] == 0


def test_table_names_what_could_not_be_scored() -> None:
    assert as_table({"map": 0.12344, "map_50": -1.0}) == [("map", "0.1234"), ("map_50", "no ground truth")]
