"""Recalibration of batch normalization: computed statistics, and unchanged tensors."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from yolo_lightning.model.layers import BatchNormSiLU2d
from yolo_lightning.training import normalization_statistics
from yolo_lightning.training.normalization_statistics import (
    StatisticsError,
    has_single_values,
    recompute_statistics,
    running_statistics,
)


def network(norm: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), norm(4), nn.Conv2d(4, 2, 1), norm(2, momentum=0.03), nn.Dropout(0.9))
    layers[1].weight.data.uniform_(0.5, 2)
    layers[3].running_mean.fill_(7)
    layers[3].num_batches_tracked.fill_(5)
    return layers


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, 8, 8, generator=generator) * (1 + number) for number in range(count)]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, BatchNormSiLU2d])
def test_statistics_are_those_of_a_cumulative_average(norm: type[nn.BatchNorm2d]) -> None:
    model = network(norm)
    reference = network(norm)
    assert recompute_statistics(model, batches(3)) == 3
    for layer in (reference[1], reference[3]):
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    reference[4].eval()
    with torch.no_grad():
        for batch in batches(3):
            reference(batch)
    for norm_layer, other in ((model[1], reference[1]), (model[3], reference[3])):
        torch.testing.assert_close(norm_layer.running_mean, other.running_mean)
        torch.testing.assert_close(norm_layer.running_var, other.running_var)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, BatchNormSiLU2d])
def test_one_value_per_channel_is_normalized_by_the_running_statistics(norm: type[nn.BatchNorm2d]) -> None:
    trained = network(norm)[:4]
    statistics = {name: buffer.clone() for name, buffer in trained.named_buffers()}
    image = batches(1)[0][:1, :, :3, :3]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        deepcopy(trained).train()(image)
    trained.train()
    with running_statistics(trained):
        output = trained(image)
    assert all(layer.training for layer in trained)
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in trained.named_buffers())
    torch.testing.assert_close(output, deepcopy(trained).eval()(image))
    output.sum().backward()
    assert trained[0].weight.grad is not None


@pytest.mark.parametrize(
    ("shape", "expected"), [((1, 3, 32, 32), True), ((2, 3, 32, 32), False), ((1, 3, 32, 64), False)]
)
def test_inputs_with_one_value_per_channel(shape: tuple[int, ...], expected: bool) -> None:
    assert has_single_values(torch.zeros(shape), 32) == expected


def test_nothing_else_changes() -> None:
    model = network()
    before = deepcopy(model.state_dict())
    recompute_statistics(model, batches(2))
    same = [name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])]
    assert set(before) - set(same) == {
        f"{layer}.{name}" for layer in (1, 3) for name in ("running_mean", "running_var")
    }
    assert [model[1].momentum, model[3].momentum] == [0.1, 0.03]
    assert not any(layer.training for layer in model.modules())


def test_what_cannot_be_computed_is_refused_and_changes_nothing() -> None:
    with pytest.raises(StatisticsError, match="there is no batch"):
        recompute_statistics(network(), [])
    model = network()
    before = deepcopy(model.state_dict())
    with pytest.raises(StatisticsError, match="statistics of 1 are not finite"):
        recompute_statistics(model, [torch.full((2, 3, 8, 8), torch.inf)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [model[1].momentum, model[3].momentum] == [0.1, 0.03]


def test_network_without_normalization_is_not_run() -> None:
    assert recompute_statistics(nn.Linear(2, 2), [torch.zeros(1, 3)]) == 0


def test_statistics_of_frozen_parts_are_kept() -> None:
    model = network()
    recompute_statistics(model, batches(2), frozen=("3",))
    assert model[1].running_mean.abs().sum() > 0
    assert model[3].running_mean.tolist() == [7, 7]


@pytest.mark.parametrize(("own", "other", "difference"), [(1, 1, 0.5), (1, 0, 0.0), (0, 1, 1.0)])
def test_several_ranks_get_the_mean(monkeypatch: pytest.MonkeyPatch, own: int, other: int, difference: float) -> None:
    """Of the ranks that have a batch; all ranks take part in the exchange."""
    model = network()
    whole = network()
    recompute_statistics(whole, batches(1))
    larger = [statistic + 1 for name, statistic in whole.named_buffers() if name.endswith(("mean", "var"))]
    of_other = torch.cat([*larger, torch.ones(1)]) * other
    monkeypatch.setattr(normalization_statistics, "sum_over_ranks", lambda statistics: statistics.add_(of_other))
    recompute_statistics(model, batches(1) if own else [], ranks=2)
    for norm_layer, alone in ((model[1], whole[1]), (model[3], whole[3])):
        torch.testing.assert_close(norm_layer.running_mean, alone.running_mean + difference)
        torch.testing.assert_close(norm_layer.running_var, alone.running_var + difference)


def test_ranks_without_a_batch_keep_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    before = {name: statistic.clone() for name, statistic in model.named_buffers()}
    monkeypatch.setattr(normalization_statistics, "sum_over_ranks", lambda statistics: statistics)
    with pytest.raises(StatisticsError, match="there is no batch of images"):
        recompute_statistics(model, [], ranks=2)
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
