from typing import Any, Literal

import pytest

from yolo_lightning.training.recipe import Recipe
from yolo_lightning.utils.accelerator import chosen_device
from yolo_lightning.utils.choices import as_settings, check_choices, check_range, settings_group


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


@pytest.mark.parametrize(("value", "shown"), [("1", "the text '1'"), (None, "None"), ([1], r"\[1\]")])
def test_other_value_than_a_number_is_named(value: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=f"share must be a number > 0, got {shown}"):
        check_range("share", value, "> 0")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"lr_0": 0.1}, r"Recipe has no setting 'lr_0'\. Did you mean lr0\?"),
        ({"nominal_batch": 2.5}, r"model\.recipe\.nominal_batch must be an integer or auto, got 2\.5"),
        ({"cosine": "no"}, r"model\.recipe\.cosine must be true or false, got 'no'"),
    ],
)
def test_settings_of_a_group_are_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_settings(Recipe, value)


@settings_group("a.group")
class Example:
    number: float = 1.0
    names: tuple[str, ...] = ()
    limit: int | None = None
    mode: Literal["on", "off"] = "on"

    def __post_init__(self) -> None:
        check_range("a.group.number", self.number, "> 0")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"number": "1"}, r"a\.group\.number must be a number, got '1'"),
        ({"number": 0}, r"a\.group\.number must be > 0, got 0"),
        ({"names": "car"}, r"a\.group\.names must be a list of texts, got 'car'"),
        ({"names": ["car", 3]}, r"a\.group\.names must be a list of texts, got \['car', 3\]"),
        ({"mode": "up"}, r"a\.group\.mode must be on or off, got 'up'"),
        ({"limit": 1.5}, r"a\.group\.limit must be an integer or null, got 1\.5"),
    ],
)
def test_setting_of_another_type_is_named_before_values_are_compared(values: dict[str, Any], message: str) -> None:
    assert Example(2, ("car",), None).names == ("car",)
    with pytest.raises(ValueError, match=message):
        Example(**values)
