"""The trained network as others are to see it: PyTorch's own layers, averaged weights, decoded predictions."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yolo_lightning.model.graph import read_checkpoint
from yolo_lightning.model.layers import restore


def plain_network(checkpoint: Path) -> Any:
    """The network of one of our checkpoints with PyTorch's own layers, as Ultralytics would have built it.

    Args:
        checkpoint: A `.ckpt` file; its weights are the averaged ones.

    Returns:
        An Ultralytics `DetectionModel` in evaluation mode, float32, contiguous, on the CPU.
    """
    graph = read_checkpoint(checkpoint)
    restore(graph)
    graph.to(memory_format=torch.contiguous_format)
    return graph.eval()


class InferenceNetwork(nn.Module):
    """`(B, channels, H, W)` float32 images, 0 to 1, to `(B, 4 + classes, anchors)`: xywh in input pixels, class scores.

    Batch normalisation is folded into the convolutions. H and W are multiples of 32.

    Args:
        graph: From `plain_network`; changed in place.
        channels: 3, or 1 for gray images, which count as three equal channels.
    """

    def __init__(self, graph: Any, channels: int = 3) -> None:
        super().__init__()
        assert channels in (1, 3)
        graph.fuse(verbose=False)
        head = graph.model[-1]
        head.export, head.dynamic, head.format = True, True, "onnx"
        if channels == 1:
            stem = graph.model[0].conv
            # A convolution is linear: equal channels meet the sum of the weight over its channels.
            stem.weight = nn.Parameter(stem.weight.detach().sum(1, keepdim=True))
            stem.in_channels = 1
        self.detector = graph.eval().requires_grad_(False)
        self.channels = channels
        self.classes = int(head.nc)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Decoded predictions."""
        decoded: Tensor = self.detector(images)
        return decoded


def sample_images(batch: int, channels: int, image_size: int) -> Tensor:
    """`(batch, channels, image_size, image_size)` float32 images, 0 to 1, the same at every call, for comparisons.

    Smooth fields rather than noise: they excite the deeper layers as frames do.
    """
    generator = torch.Generator().manual_seed(batch)
    coarse = torch.rand(batch, channels, image_size // 16, image_size // 16, generator=generator)
    return nn.functional.interpolate(coarse, size=image_size, mode="bilinear").clamp_(0, 1)
