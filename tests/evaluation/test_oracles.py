"""Error types of detections, and the scores without one kind of error."""

import pytest
import torch

from yolo_lightning.data.batch import Prediction, Target
from yolo_lightning.evaluation.matching import BACKGROUND, DUPLICATE, LOCALIZED, Matches, match
from yolo_lightning.evaluation.oracles import oracles

NAMES = ("person", "vehicle")
OBJECT = [100.0, 100, 120, 140]
FOUND = {
    "correct": ([101.0, 101, 121, 141], 0),
    "shifted": ([111.0, 100, 131, 140], 0),
    "again": ([99.0, 99, 119, 139], 0),
    "confused": ([100.0, 100, 120, 140], 1),
    "background": ([300.0, 10, 320, 50], 0),
}


def matches_of(*months: tuple[int, list[str]]) -> Matches:
    """Frames with two persons, of which the listed detections find one, best score first, and one vehicle each."""
    predictions, targets = [], []
    for number, (month, names) in enumerate(months):
        boxes = [FOUND[name][0] for name in names]
        labels = [FOUND[name][1] for name in names]
        scores = torch.linspace(0.9, 0.5, len(names) + 1)
        boxes, labels = torch.tensor([*boxes, [10.0, 200, 60, 230]]), torch.tensor([*labels, 1])
        predictions.append(Prediction(str(number), boxes, scores, labels))
        objects = torch.tensor([OBJECT, [200.0, 100, 220, 140], [10, 200, 60, 230]])
        targets.append(Target(str(number), objects, torch.tensor([0, 0, 1]), month))
    return match(predictions, targets, 2)


def test_each_detection_has_its_error_type() -> None:
    matches = matches_of((202005, ["correct", "again", "background"]), (202005, ["shifted", "confused"]))
    hits = matches.hits
    flags = [(bool(bits & 1), *(bool(bits & bit) for bit in (LOCALIZED, DUPLICATE, BACKGROUND))) for bits in hits]
    assert flags == [
        (True, True, False, False),  # correct
        (False, False, True, False),  # again
        (False, False, False, True),  # background
        (True, True, False, False),  # vehicle
        (False, True, False, False),  # shifted
        (False, False, False, False),  # confused
        (True, True, False, False),  # vehicle
    ]


@pytest.mark.parametrize(
    ("names", "condition"),
    [
        (["shifted"], "all boxes localized"),
        (["correct", "again", "again"], "no duplicates"),
        (["background", "correct"], "no background errors"),
    ],
)
def test_only_the_condition_of_the_error_raises_the_score(names: list[str], condition: str) -> None:
    # The correct detection of the second frame has a lower score than the error, which shows the cost of the error.
    matches = matches_of((202005, names), (202005, ["confused", "correct"]))
    first, *corrected = list(oracles(matches, NAMES).items())[:4]
    assert first[0] == "as it is"
    usual = first[1]
    gains = {name: scores.balanced - usual.balanced for name, scores in corrected}
    assert usual.variation is None
    assert gains[condition] > 0.01
    assert max(gains, key=gains.__getitem__) == condition


def test_a_class_or_month_like_the_best_raises_mean_or_variation() -> None:
    rows = oracles(matches_of((202005, ["correct"]), (202006, ["background"])), NAMES)
    usual, person, vehicle = (
        rows[name] for name in ("as it is", "person like the best class", "vehicle like the best class")
    )
    assert person.map_50 == person.balanced == 1
    assert person.variation == 0
    assert vehicle == usual
    assert usual.variation is not None
    june = rows["2020-06 like the best month"]
    assert june.variation == 0
    assert june.map_50 == usual.map_50 == june.balanced > usual.balanced
    assert rows["2020-05 like the best month"].balanced == usual.balanced


def test_records_without_error_types_have_no_oracles() -> None:
    assert oracles(match([], [], 2), NAMES) == {}
