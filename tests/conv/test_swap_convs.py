"""`swap_convs` and `unswap_convs`: what changes, what stays, what is left alone."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from yolo_lightning.conv import GemmConv2d, VendorFreeBatchNorm2d, swap_convs, unswap_convs


class OwnConv2d(nn.Conv2d):
    """A subclass with a behaviour of its own."""


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.SiLU(), nn.Conv2d(4, 4, 1)))


def classes(module: nn.Module) -> list[type[nn.Module]]:
    return [type(submodule) for submodule in module.modules()]


def test_swap_changes_both_kinds_of_layer_and_unswap_is_its_inverse() -> None:
    native = model()
    before, input = classes(native), torch.randn(2, 3, 8, 8)
    state = copy.deepcopy(native.state_dict())
    reference = copy.deepcopy(native)(input)
    assert swap_convs(native) is native
    assert [type(layer) for layer in (native[0], native[1], native[2][1])] == [
        GemmConv2d,
        VendorFreeBatchNorm2d,
        GemmConv2d,
    ]
    torch.testing.assert_close(copy.deepcopy(native)(input), reference)
    assert swap_convs(native) is native, "swapping twice changes nothing"
    assert unswap_convs(native) is native
    assert classes(native) == before
    assert list(native.state_dict()) == list(state)
    assert all(torch.equal(native.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize("root", [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(3)])
def test_the_root_itself_is_swapped(root: nn.Module) -> None:
    native = type(root)
    assert type(swap_convs(root)) is not native
    assert type(unswap_convs(root)) is native


def test_everything_but_the_class_stays() -> None:
    native = model()
    native.add_module("tied", nn.Conv2d(4, 4, 1))
    native.tied.weight = native[2][1].weight
    native.double().to(memory_format=torch.channels_last).eval()
    native[0].weight.requires_grad_(False)
    parameters = [(name, id(value), value.dtype, value.stride()) for name, value in native.named_parameters()]
    seen: list[str] = []
    native[0].register_forward_hook(lambda *_: seen.append("forward"))
    native[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    swap_convs(native)
    assert [(name, id(value), value.dtype, value.stride()) for name, value in native.named_parameters()] == parameters
    assert native.tied.weight is native[2][1].weight
    assert not native[0].weight.requires_grad
    assert not any(module.training for module in native.modules())
    native(torch.randn(1, 3, 8, 8, dtype=torch.float64)).sum().backward()
    assert seen == ["forward", "backward"]
    assert native[0].weight.grad is None
    assert native[2][1].weight.grad is not None


def test_swapped_models_can_be_copied_and_pickled() -> None:
    swapped, input = swap_convs(model()).eval(), torch.randn(1, 3, 8, 8)
    for twin in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
        assert classes(twin) == classes(swapped)
        assert torch.equal(twin(input), swapped(input))
        assert classes(unswap_convs(twin)) == classes(model())


def test_a_module_used_twice_is_swapped_once() -> None:
    layer = nn.Conv2d(3, 3, 1)
    assert classes(swap_convs(nn.Sequential(layer, layer))) == [nn.Sequential, GemmConv2d]


def test_other_convolutions_are_left_and_named_in_one_warning() -> None:
    left = {
        "own": OwnConv2d(3, 4, 3),
        "lazy": nn.LazyConv2d(4, 3),
        "normed": parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        "line": nn.Conv1d(3, 4, 3),
        "volume": nn.Conv3d(3, 4, 3),
        "up": nn.ConvTranspose2d(3, 4, 3),
    }
    native = nn.ModuleDict({**left, "plain": nn.Conv2d(3, 4, 3), "norm1d": nn.BatchNorm1d(3)})
    before = {name: type(native[name]) for name in (*left, "norm1d")}
    with pytest.warns(UserWarning, match="vendor library") as caught:
        swap_convs(native)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    message = str(caught[0].message)
    assert all(f"{name} (" in message for name in left)
    assert "plain" not in message
    assert {name: type(native[name]) for name in before} == before
    assert type(native["plain"]) is GemmConv2d


def test_no_warning_where_nothing_is_left() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        swap_convs(model())
    assert [str(warning.message) for warning in caught] == []


def test_unswap_leaves_a_subclass_of_ours_alone() -> None:
    class Own(GemmConv2d):
        pass

    assert type(unswap_convs(Own(3, 4, 3))) is Own
