"""Recorded passes of a network: their place in autograd, refusals, and, on a GPU, their results."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from tests.helpers.networks import module_of
from yolo_lightning.errors import UserError
from yolo_lightning.training.cuda_graph import RecordedNetwork, Replay, without_feature_gradients


class ReplayedProduct:
    """Stands for the recording of `inputs * weight`, whose replays write into the same tensors."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        self.inputs = torch.zeros(2)
        self.outputs = [torch.zeros(2, requires_grad=True), torch.zeros(1)]
        self.output_gradients = [torch.zeros(2)]
        self.gradients = [torch.zeros(()), None]
        self.parameters = [weight]
        self.forward_graph = SimpleNamespace(replay=self._forward)
        self.backward_graph = SimpleNamespace(replay=self._backward)

    def _forward(self) -> None:
        self.outputs[0].data.copy_(self.inputs * self.parameters[0].detach())

    def _backward(self) -> None:
        assert isinstance(self.gradients[0], Tensor)
        self.gradients[0].copy_((self.output_gradients[0] * self.inputs).sum())


def test_gradients_of_replays_are_summed_and_survive_the_next_replay() -> None:
    weight = torch.nn.Parameter(torch.tensor(3.0))
    unused = torch.nn.Parameter(torch.tensor(1.0))
    recording: Any = ReplayedProduct(weight)
    product, features = Replay.apply(recording, torch.tensor([1.0, 2.0]), weight, unused)
    assert product.tolist() == [3.0, 6.0]
    assert not features.requires_grad
    product.sum().backward()
    first = weight.grad
    assert first is not None
    product, _ = Replay.apply(recording, torch.tensor([10.0, 0.0]), weight, unused)
    assert first.item() == 3.0
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == 13.0
    assert unused.grad is None


def test_features_have_no_gradient() -> None:
    boxes = torch.ones(2, requires_grad=True) * 2
    output = without_feature_gradients({"one2many": {"boxes": boxes, "feats": [boxes]}})
    assert output["one2many"]["boxes"] is boxes
    assert not output["one2many"]["feats"][0].requires_grad


def test_refusals() -> None:
    module = module_of(cuda_graph=True)
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(UserError, match=r"cuda_graph needs one NVIDIA or AMD GPU, got 1 x cpu"):
        module.setup("fit")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_mixed", [False, True])
def test_recorded_network_equals_the_network(is_mixed: bool) -> None:
    network = module_of().graph.cuda().train()
    reference = copy.deepcopy(network)
    recorded = RecordedNetwork(network)
    for images in (4, 4, 4, 2, 4):
        inputs = torch.rand(images, 3, 64, 64, device="cuda")
        for tested in (recorded, reference):
            with torch.autocast("cuda", torch.bfloat16, enabled=is_mixed):
                output = tested(inputs)
            (output["boxes"].float().square().sum() + output["scores"].float().square().sum()).backward()
    assert recorded._recording is not None
    for (name, tensor), expected in zip(network.named_parameters(), reference.parameters(), strict=True):
        if tensor.requires_grad:
            assert tensor.grad is not None
            assert expected.grad is not None
            scale = expected.grad.abs().max().clamp(min=1e-6)
            assert ((tensor.grad - expected.grad).abs().max() / scale).item() < 0.1, name
    for (name, buffer), expected in zip(network.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, rtol=0.02, atol=0.02, msg=name)
