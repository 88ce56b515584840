"""Invalid arguments raise a `ValueError` with the name and value of the argument."""

from typing import Any

import pytest
import torch

from yolo_lightning.conv import conv2d

INPUT, WEIGHT = (2, 4, 6, 6), (8, 4, 3, 3)


@pytest.mark.parametrize(
    ("input_shape", "weight_shape", "arguments", "message"),
    [
        (INPUT, WEIGHT, {"stride": 0}, "stride must be >= 1, got 0"),
        (INPUT, WEIGHT, {"stride": (1, -1)}, r"stride must be >= 1, got \(1, -1\)"),
        (INPUT, WEIGHT, {"padding": -1}, "padding must be >= 0, got -1"),
        (INPUT, WEIGHT, {"dilation": 0}, "dilation must be >= 1, got 0"),
        (INPUT, WEIGHT, {"stride": (1, 1, 1)}, r"stride must be .*2 spatial.*got \(1, 1, 1\)"),
        (INPUT, WEIGHT, {"padding": (1, 1, 1)}, r"padding must be .*2 spatial.*got \(1, 1, 1\)"),
        (INPUT, WEIGHT, {"dilation": ()}, r"dilation must be .*2 spatial.*got \(\)"),
        (INPUT, WEIGHT, {"padding": "full"}, "padding must be .*'same' or 'valid', got 'full'"),
        (INPUT, WEIGHT, {"padding": "same", "stride": 2}, r"padding='same' needs stride 1, got stride \(2, 2\)"),
        (INPUT, WEIGHT, {"groups": 0}, "groups must be an integer > 0, got 0"),
        (INPUT, WEIGHT, {"groups": -1}, "groups must be an integer > 0, got -1"),
        (INPUT, (8, 2, 3, 3), {"groups": 3}, "groups must divide the 8 output channels.*got 3"),
        (INPUT, (8, 3, 3, 3), {}, "expects an input with 3 channels, got 4"),
        (INPUT, WEIGHT, {"groups": 2}, "expects an input with 8 channels, got 4"),
        (INPUT, (8, 4, 7, 3), {}, r"kernel size can't be greater than actual input size.*\(7, 3\).*\(6, 6\)"),
        (INPUT, WEIGHT, {"dilation": 3}, r"kernel size can't be greater.*\(7, 7\).*\(6, 6\)"),
        (INPUT, (8, 4, 0, 3), {}, r"weight must have .*, got shape \(8, 4, 0, 3\)"),
        (INPUT, (0, 4, 3, 3), {}, r"weight must have .*, got shape \(0, 4, 3, 3\)"),
        ((2, 4, 6, 6, 6), WEIGHT, {}, r"expected 3D \(unbatched\) or 4D \(batched\) input.*\(2, 4, 6, 6, 6\)"),
        ((6, 6), WEIGHT, {}, r"expected 3D \(unbatched\) or 4D \(batched\) input.*\(6, 6\)"),
        (INPUT, (8, 4, 3), {}, r"expected a 4-D weight.*\(8, 4, 3\)"),
        (INPUT, WEIGHT, {"bias": torch.zeros(7)}, r"bias must have shape \(8,\), got \(7,\)"),
        (INPUT, WEIGHT, {"bias": torch.zeros(8, dtype=torch.float64)}, "float32.*bias.*float64.*should be the same"),
        (INPUT, WEIGHT, {"bias": torch.zeros(8, device="meta")}, "cpu.*bias.*meta.*same device"),
    ],
    ids=str,
)
def test_bad_arguments(
    input_shape: tuple[int, ...], weight_shape: tuple[int, ...], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        conv2d(torch.zeros(input_shape), torch.zeros(weight_shape), **arguments)


def test_dtypes_must_agree_and_be_floats() -> None:
    with pytest.raises(ValueError, match=r"float64.*weight.*float32.*should be the same"):
        conv2d(torch.zeros(INPUT, dtype=torch.float64), torch.zeros(WEIGHT))
    with pytest.raises(ValueError, match=r"input must have dtype torch\.float32.*, got torch\.int64"):
        conv2d(torch.zeros(INPUT, dtype=torch.int64), torch.zeros(WEIGHT, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"complex64.*weight.*float32.*should be the same"):
        conv2d(torch.zeros(INPUT, dtype=torch.complex64), torch.zeros(WEIGHT))
