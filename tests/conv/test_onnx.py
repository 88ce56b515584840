"""ONNX export of a network after `swap_convs`, by both exporters of torch, compared with onnxruntime."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yolo_lightning.conv import swap_convs

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.whole_run


class Planes(nn.Module):
    """Strided, grouped, dilated and transposed convolutions, unequal padding, and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=2, groups=4, dilation=2)
        self.third = nn.Conv2d(8, 4, (1, 4), padding="same", padding_mode="reflect")
        self.up = nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.up(self.third(self.second(F.silu(self.norm(self.first(images))))))
        return output


def lines() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 6, 5, padding=2), nn.BatchNorm1d(6), nn.ConvTranspose1d(6, 2, 4, 2, 1))


def volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ConvTranspose3d(4, 2, 2, stride=2))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "2-D": (Planes, (2, 3, 12, 16), ["Conv"] * 3 + ["ConvTranspose"]),
    "1-D": (lines, (2, 2, 16), ["Conv", "ConvTranspose"]),
    "3-D": (volumes, (2, 2, 4, 6, 6), ["Conv", "ConvTranspose"]),
}


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_become_operators_of_onnx(name: str, dynamo: bool, tmp_path: Path) -> None:
    build, shape, expected = NETWORKS[name]
    torch.manual_seed(0)
    network = build().train()
    network(torch.randn(shape))  # statistics that are not 0 and 1
    swap_convs(network).eval()
    file = tmp_path / "network.onnx"
    options: dict[str, Any] = {"dynamo": True, "external_data": False} if dynamo else {"dynamo": False}
    torch.onnx.export(network, (torch.randn(shape),), str(file), input_names=["x"], **options)
    operators = [node.op_type for node in onnx.load(file).graph.node]
    assert sorted(operator for operator in operators if operator.startswith("Conv")) == expected
    assert all(node.domain in ("", "ai.onnx") for node in onnx.load(file).graph.node)
    input = torch.randn(shape)
    (output,) = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(
        None, {"x": input.numpy()}
    )
    torch.testing.assert_close(torch.from_numpy(output), network(input).detach(), rtol=1e-4, atol=1e-5)
