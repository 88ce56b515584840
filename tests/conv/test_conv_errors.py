"""Bad arguments get a `ValueError` that names them."""

from typing import Any

import pytest
import torch

from yolo_lightning.conv import conv2d

INPUT, WEIGHT = (2, 4, 6, 6), (8, 4, 3, 3)


@pytest.mark.parametrize(
    ("input_shape", "weight_shape", "arguments", "message"),
    [
        (INPUT, WEIGHT, {"stride": 0}, "stride is 0.*at least 1"),
        (INPUT, WEIGHT, {"stride": (1, -1)}, r"stride is \(1, -1\).*at least 1"),
        (INPUT, WEIGHT, {"padding": -1}, "padding is -1.*at least 0"),
        (INPUT, WEIGHT, {"dilation": 0}, "dilation is 0.*at least 1"),
        (INPUT, WEIGHT, {"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\).*2 spatial"),
        (INPUT, WEIGHT, {"padding": (1, 1, 1)}, r"padding is \(1, 1, 1\).*2 spatial"),
        (INPUT, WEIGHT, {"dilation": ()}, r"dilation is \(\).*2 spatial"),
        (INPUT, WEIGHT, {"padding": "full"}, "padding is 'full'.*'same' and 'valid'"),
        (INPUT, WEIGHT, {"padding": "same", "stride": 2}, r"padding='same' needs stride 1, got stride \(2, 2\)"),
        (INPUT, WEIGHT, {"groups": 0}, "groups is 0.*positive"),
        (INPUT, WEIGHT, {"groups": -1}, "groups is -1.*positive"),
        (INPUT, (8, 2, 3, 3), {"groups": 3}, "groups is 3.*divide the 8 output channels"),
        (INPUT, (8, 3, 3, 3), {}, "expects an input with 3 channels, got 4"),
        (INPUT, WEIGHT, {"groups": 2}, "expects an input with 8 channels, got 4"),
        (INPUT, (8, 4, 7, 3), {}, r"kernel size can't be greater than actual input size.*\(7, 3\).*\(6, 6\)"),
        (INPUT, WEIGHT, {"dilation": 3}, r"kernel size can't be greater.*\(7, 7\).*\(6, 6\)"),
        (INPUT, (8, 4, 0, 3), {}, r"\(8, 4, 0, 3\) is empty"),
        (INPUT, (0, 4, 3, 3), {}, r"\(0, 4, 3, 3\) is empty"),
        ((2, 4, 6, 6, 6), WEIGHT, {}, r"expected 3D \(unbatched\) or 4D \(batched\) input.*\(2, 4, 6, 6, 6\)"),
        ((6, 6), WEIGHT, {}, r"expected 3D \(unbatched\) or 4D \(batched\) input.*\(6, 6\)"),
        (INPUT, (8, 4, 3), {}, r"expected a 4-D weight.*\(8, 4, 3\)"),
        (INPUT, WEIGHT, {"bias": torch.zeros(7)}, r"bias has shape \(7,\).*\(8,\)"),
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


def test_dtypes_must_agree_and_be_real_floats() -> None:
    with pytest.raises(ValueError, match=r"float64.*weight.*float32.*should be the same"):
        conv2d(torch.zeros(INPUT, dtype=torch.float64), torch.zeros(WEIGHT))
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(ValueError, match=rf"{dtype}; allowed are torch\.float32"):
            conv2d(torch.zeros(INPUT, dtype=dtype), torch.zeros(WEIGHT, dtype=dtype))
