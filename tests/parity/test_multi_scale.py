"""Multi-scale input sizes: distribution and resizing as in Ultralytics, determined by (seed, step)."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from ultralytics.models.yolo.detect import DetectionTrainer

from tests.parity.training_twins import SIZE, Frames, Recorder, make_trainer, random_batches
from yolo_lightning.data.image_size import STRIDE
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.device_transforms import resized, training_size
from yolo_lightning.training.recipe import Recipe


def theirs(images: Tensor, spread: float, size: int) -> Tensor:
    args = SimpleNamespace(multi_scale=spread, imgsz=size)
    trainer: Any = SimpleNamespace(device=torch.device("cpu"), stride=STRIDE, args=args)
    scaled: Tensor = DetectionTrainer.preprocess_batch(trainer, {"img": images})["img"]
    return scaled


@pytest.mark.parametrize("shape", [(96, 96), (64, 96)])
def test_images_equal_ultralytics_at_every_size(shape: tuple[int, int]) -> None:
    images = torch.randint(256, (2, 3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    random.seed(0)
    sizes = set()
    for _ in range(40):
        expected = theirs(images, 0.5, 96)
        sizes.add(max(expected.shape[-2:]))
        assert torch.equal(resized(images.float() / 255, max(expected.shape[-2:])), expected)
    assert sizes == {32, 64, 96, 128, 160}


@pytest.mark.parametrize(("size", "spread"), [(96, 0.5), (640, 0.25), (64, 0.9), (416, 0.1)])
def test_sizes_are_as_frequent_as_with_ultralytics(size: int, spread: float) -> None:
    random.seed(0)
    empty = torch.zeros(1, 1, size, size, dtype=torch.uint8).expand(1, 1, size, size)
    if size > 100:  # the same draw without the resizing
        low, high = max(STRIDE, int(size * (1 - spread))), int(size * (1 + spread) + STRIDE)
        expected = [random.randrange(low, high) // STRIDE * STRIDE for _ in range(4000)]
    else:
        expected = [theirs(empty, spread, size).shape[-1] for _ in range(4000)]
    sizes = [training_size(size, spread, 0, step) for step in range(4000)]
    assert set(sizes) == set(expected)
    for side in set(sizes):
        assert abs(sizes.count(side) - expected.count(side)) < 250  # more than five standard deviations


@given(st.integers(1, 40), st.floats(0, 0.99), st.integers(0, 9), st.integers(0, 10**7))
def test_size_is_a_multiple_of_the_stride_within_the_spread(strides: int, spread: float, seed: int, step: int) -> None:
    size = strides * STRIDE
    side = training_size(size, spread, seed, step)
    assert side % STRIDE == 0
    assert max(STRIDE, size * (1 - spread) - STRIDE) <= side <= size * (1 + spread) + STRIDE
    assert side == training_size(size, spread, seed, step)


def test_network_is_trained_at_the_size_of_each_step_and_boxes_stay(tmp_path: Path) -> None:
    module = YOLOModule(convolution=ConvolutionSettings(backend="native"), recipe=Recipe(multi_scale=0.5))
    seen: list[int] = []
    module.graph.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    make_trainer(tmp_path, 1, Recorder()).fit(module, Frames(random_batches()))
    assert seen == [training_size(SIZE, 0.5, 0, step) for step in range(5)]
    assert len(set(seen)) > 1


@pytest.mark.parametrize("spread", [-0.1, 1.0])
def test_spread_out_of_range_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match=f"model.recipe.multi_scale must be >= 0 and < 1, got {spread}"):
        YOLOModule(recipe=Recipe(multi_scale=spread))
