from typing import Literal

import pytest
import torch

from yolo_lightning.utils.choices import check_choices, chosen_device


def test_auto_is_the_accelerator_where_there_is_one() -> None:
    expected = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert chosen_device("auto") == expected


def test_device_that_only_pretends_to_compute_is_refused() -> None:
    with pytest.raises(ValueError, match="device is 'meta', allowed are auto, cpu"):
        chosen_device("meta")


def test_one_bad_value_among_good_ones_is_named() -> None:
    with pytest.raises(ValueError, match="fruit is 'plum', allowed are apple, pear"):
        check_choices("fruit", ["pear", "plum"], Literal["apple", "pear"])
