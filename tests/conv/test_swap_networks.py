"""`swap_convs` on common networks: equal results, and one training step without an operator of a vendor library."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torchvision import models

from tests.helpers.operators import vendor_operators
from yolo_lightning.conv import swap_convs, unswap_convs


class UNet(nn.Module):
    """Two levels with a transposed convolution between them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.LazyConv2d(16, 3, padding=1), nn.LazyBatchNorm2d(), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down(image)
        output: Tensor = self.last(torch.cat([fine, self.up(self.middle(fine))], 1))
        return output


def autoencoder1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 5, stride=2, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.ConvTranspose1d(8, 2, 4, 2, 1)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: models.resnet18(weights=None, num_classes=4), (2, 3, 48, 48)),
    "mobilenet_v3_small": (lambda: models.mobilenet_v3_small(weights=None, num_classes=4, dropout=0.0), (2, 3, 48, 48)),
    "convnext": (
        lambda: models.ConvNeXt(
            [models.convnext.CNBlockConfig(8, 16, 1), models.convnext.CNBlockConfig(16, None, 1)], num_classes=4
        ),
        (2, 3, 32, 32),
    ),
    "unet": (UNet, (2, 3, 16, 16)),
    "r3d_18": (lambda: models.video.r3d_18(weights=None, num_classes=4), (2, 3, 2, 16, 16)),
    "autoencoder1d": (autoencoder1d, (2, 2, 32)),
}


def training_step(network: nn.Module, input: Tensor) -> list[Tensor]:
    """Return the output, the gradients and the state after one SGD step."""
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    output = network(input)
    output.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    optimizer.step()
    return [output.detach(), *gradients, *network.state_dict().values()]


LARGE = {"resnet18", "mobilenet_v3_small", "r3d_18"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole_run if name in LARGE else ()) for name in NETWORKS]
)
def test_training_step_equals_torch_without_a_vendor_operator(name: str) -> None:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    native, input = build().double(), torch.randn(shape, dtype=torch.float64)
    native.eval()(input)  # initialises lazy layers
    classes = [type(module) for module in native.modules()]
    swapped = swap_convs(copy.deepcopy(native)).train()
    expected = training_step(native.train(), input)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        actual = training_step(swapped, input)
    assert vendor_operators(trace) == set()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)
    assert [type(module) for module in unswap_convs(swapped).modules()] == classes


def test_native_layer_uses_a_vendor_operator() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        nn.Conv3d(3, 4, 3)(torch.randn(2, 3, 4, 8, 8))
    assert vendor_operators(trace)


@pytest.mark.whole_run
def test_faster_rcnn_trains_without_a_vendor_operator() -> None:
    torch.manual_seed(0)
    network: Any = models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
    ).train()
    swap_convs(network)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0]])
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        losses = network([torch.rand(3, 64, 64)] * 2, [{"boxes": boxes, "labels": torch.tensor([1])}] * 2)
        total = sum(losses.values())
        total.backward()
        optimizer.step()
    assert vendor_operators(trace) == set()
    assert torch.isfinite(total)
    assert any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert all(parameter.grad is not None for parameter in network.backbone.parameters() if parameter.requires_grad)
