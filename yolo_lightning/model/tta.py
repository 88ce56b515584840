"""Shows a trained network each image several times, scaled and mirrored, and puts all that it says together.

Scales and merging are those of Ultralytics' `DetectionModel._predict_augment` (8.4): candidates of all views side by
side, for one suppression. It mirrors the middle scale only and drops the coarsest and finest cells of the outer views;
here each scale is shown both ways and nothing is dropped, so that a mirrored image gives exactly the mirrored result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.data.boxes import STRIDE

PADDING_LEVEL = 114 / 255
"""Gray of the padding, that of the letterbox."""


@dataclass(frozen=True, slots=True)
class View:
    """How an image is shown.

    Attributes:
        scale: Sides are scaled by this, above 0 to 1, and rounded down to whole pixels.
        mirrored: Whether left and right are exchanged.
    """

    scale: float
    mirrored: bool


ORIGINAL = View(1.0, False)
VIEWS = tuple(View(scale, mirrored) for scale in (1.0, 0.83, 0.67) for mirrored in (False, True))
"""The original first; together 4.3 times its pixels."""


def augmented(network: Callable[[Tensor], Any], images: Tensor, original: Tensor) -> Tensor:
    """Candidates of all views, in pixels of the original input.

    Args:
        network: Maps `(B, C, H, W)` floating-point images (0 to 1), sides multiples of 32, to a sequence whose first
            part is `(B, 4 + classes, anchors)`: xywh in input pixels and class scores.
        images: `(B, C, H, W)`, C = 1 or 3.
        original: What the network says of the images as they are, `(B, 4 + classes, A)`.

    Returns:
        `(B, 4 + classes, A + ...)`, the original's first.
    """
    others = [seen(network, images, view) for view in VIEWS if view != ORIGINAL]
    return torch.cat([original, *others], dim=-1)


def seen(network: Callable[[Tensor], Any], images: Tensor, view: View) -> Tensor:
    """Candidates of one view in pixels of the original input; arguments as in `augmented`."""
    height, width = images.shape[-2:]
    shown = (int(height * view.scale), int(width * view.scale))
    decoded: Tensor = network(show(images, view))[0]
    return mapped_back(decoded, view, (height, width), (shown[0] / height, shown[1] / width))


def show(images: Tensor, view: View) -> Tensor:
    """Images `(B, C, H, W)` as a view shows them, padded at the right and below to multiples of the stride."""
    if view.mirrored:
        images = images.flip(-1)
    if view.scale != 1:
        sides = [int(side * view.scale) for side in images.shape[-2:]]
        images = nn.functional.interpolate(images, size=sides, mode="bilinear", align_corners=False)
    below, right = (-side % STRIDE for side in images.shape[-2:])
    return nn.functional.pad(images, (0, right, 0, below), value=PADDING_LEVEL)


def mapped_back(decoded: Tensor, view: View, shape: tuple[int, int], gains: tuple[float, float]) -> Tensor:
    """Candidates of a view in pixels of the original input.

    Args:
        decoded: `(B, 4 + classes, anchors)`, centre-x, centre-y, width, height in pixels of the view, class scores.
        view: The view.
        shape: `(height, width)` of the original input, pixels.
        gains: Pixels of the view per pixel of the original input, along height and width.
    """
    vertical, horizontal = gains
    x, y, width, height = decoded[:, :4].chunk(4, dim=1)
    x = x / horizontal
    x = shape[1] - x if view.mirrored else x
    return torch.cat([x, y / vertical, width / horizontal, height / vertical, decoded[:, 4:]], dim=1)
