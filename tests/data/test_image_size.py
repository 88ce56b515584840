"""`ImageSize` from one number or two."""

from typing import Any

import pytest

from yolo_lightning.data.image_size import ImageSize


@pytest.mark.parametrize(
    ("value", "plain"), [(64, 64), ([64, 64], 64), ([288, 384], [288, 384]), ((96, 64), [96, 64])], ids=str
)
def test_plain_value_is_the_one_in_options_and_files(value: Any, plain: Any) -> None:
    size = ImageSize.of("data.image_size", value)
    assert size.plain() == plain
    assert str(size) == str(plain)
    assert ImageSize.of("data.image_size", size.plain()) == size


@pytest.mark.parametrize("value", [[64], [64, 64, 64], "64", 64.0, [64, "64"], [64, True], None, []], ids=repr)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"data\.image_size must be one integer \(a square\) or two") as refused:
        ImageSize.of("data.image_size", value)
    assert str(refused.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("value", "stride", "message"),
    [
        (650, 32, r"a multiple of 32 and >= 32, got 650\. Did you mean 640\?"),
        ([100, 320], 32, r"two multiples of 32 and >= 32, got \[100, 320\]"),
        ([64, -32], 32, r"two multiples of 32 and >= 32, got \[64, -32\]"),
        ([0, 64], 32, r"two multiples of 32 and >= 32, got \[0, 64\]"),
        ([288, 384], 64, r"two multiples of 64 and >= 64, got \[288, 384\]"),
    ],
)
def test_sides_must_be_multiples_of_the_stride(value: Any, stride: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageSize.of("data.image_size", value).check("data.image_size", stride=stride)


@pytest.mark.parametrize(
    ("longer_side", "frame", "size"),
    [
        (640, (288, 384), (480, 640)),
        (640, (1080, 1920), (384, 640)),  # 360 rows are no multiple of 32
        (640, (640, 480), (640, 480)),
        (640, (512, 512), (640, 640)),
        (64, (10, 9999), (32, 64)),
    ],
)
def test_size_follows_the_shape_of_a_frame(longer_side: int, frame: tuple[int, int], size: tuple[int, int]) -> None:
    assert ImageSize.following(longer_side, *frame) == size


def test_size_follows_in_multiples_of_the_stride() -> None:
    assert ImageSize.following(640, 288, 384, stride=64) == (512, 640)
