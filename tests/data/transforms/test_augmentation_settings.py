"""Accepted and rejected settings of the augmentation."""

from dataclasses import fields
from typing import Any

import pytest

from yolo_lightning.data.transforms.augmentation_settings import SHARES, Augmentation, BoxPaste

RANGES = {
    **dict.fromkeys(SHARES, (0, 1)),
    "degrees": (0, 180),
    "scale": (0, 0.9),
    "shear": (0, 45),
    "gain": (0, 0.9),
    "gamma": (0, 4),
    "noise": (0, 64),
    "fixed_pattern": (0, 64),
    "shading": (0, 128),
    "blur": (0, 10),
}


@pytest.mark.parametrize("name", list(RANGES))
def test_every_setting_is_held_to_its_range(name: str) -> None:
    least, most = RANGES[name]
    for value in (least, most):
        assert getattr(Augmentation(**{name: value}), name) == value
    for value in (least - 0.01, most + 0.01, float("nan")):
        with pytest.raises(ValueError, match=rf"data\.augmentation\.{name} must be >= {least} and <= {most}, got"):
            Augmentation(**{name: value})


def test_no_setting_is_without_a_range() -> None:
    without_range = {"close_mosaic_epochs", "paste", "pixel_transforms"}
    assert {field.name for field in fields(Augmentation)} - set(RANGES) == without_range


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("probability", value, ">= 0 and <= 1") for value in (-0.1, 1.1, float("nan"))),
        ("count", 0, ">= 1"),
    ],
)
def test_setting_of_box_paste_out_of_range_is_refused(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"data\.augmentation\.paste\.{name} must be {allowed}, got {value!r}"):
        BoxPaste(**{name: value})


def test_negative_epochs_are_refused() -> None:
    with pytest.raises(ValueError, match="close_mosaic_epochs must be >= 0 or auto, got -1"):
        Augmentation(close_mosaic_epochs=-1)
