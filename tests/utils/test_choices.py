from typing import Any, Literal

import pytest

from yolo_lightning.training.recipe import Recipe
from yolo_lightning.utils.choices import as_settings, check_choices, check_range, chosen_device


def test_device_that_only_pretends_to_compute_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device must be one of auto, cpu.*, got 'meta'"):
        chosen_device("meta")


def test_one_bad_value_among_good_ones_is_named() -> None:
    with pytest.raises(ValueError, match="fruit must be one of apple, pear, got 'plum'"):
        check_choices("fruit", ["pear", "plum"], Literal["apple", "pear"])


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_value_out_of_range_is_refused_with_the_limits(value: float) -> None:
    check_range("share", 1, "> 0", "<= 1")
    with pytest.raises(ValueError, match=f"share must be > 0 and <= 1, got {value}"):
        check_range("share", value, "> 0", "<= 1")


def test_text_instead_of_a_number_is_named() -> None:
    with pytest.raises(ValueError, match="share must be a number > 0, got the text '1'"):
        check_range("share", "1", "> 0")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lr_0": 0.1}, r"Recipe has no setting 'lr_0'\. Did you mean lr0\?"),
        ("SGD", r"Recipe\(.*lr0, .*\) is expected, got 'SGD'"),
    ],
)
def test_settings_of_a_group_are_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_settings(Recipe, value)
