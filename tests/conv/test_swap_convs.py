"""`swap_convs` and `unswap_convs`: changed classes, preserved state, rejected layers."""

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from torch.nn.utils.parametrize import remove_parametrizations
from torch.nn.utils.prune import l1_unstructured
from torch.profiler import ProfilerActivity, profile

from tests.helpers.operators import vendor_operators
from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, GemmConv2d, VendorFreeBatchNorm2d, swap_convs, unswap_convs


class OwnConv2d(nn.Conv2d):
    """A subclass with additional behaviour."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class OwnLazyConv2d(nn.LazyConv2d):
    """A subclass of a lazy layer."""


class OwnBatchNorm2d(nn.BatchNorm2d):
    """A subclass with additional behaviour."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class SameConv2d(nn.Conv2d):
    """A convolution that pads its input first, as timm's `Conv2dSame`."""

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(padded, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose weight is normalized at each call, as timm's `StdConv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0)
        return self._conv_forward(x, weight.reshape_as(self.weight), self.bias)


class BatchNormAct2d(nn.BatchNorm2d):
    """A normalization with an activation, as in timm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        running = self.running_mean, self.running_var
        output = F.batch_norm(x, *running, self.weight, self.bias, self.training, 0.1, self.eps)
        return self.act(output)


class Square(nn.Conv2d):
    """A subclass with the behaviour of the layer, as in torchvision's video models."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1)

    @staticmethod
    def sides() -> int:
        return 4


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


def test_only_the_class_changes() -> None:
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


def prepared_for_quantization() -> nn.Module:
    layer = nn.Conv2d(3, 4, 3)
    layer.qconfig = torch.ao.quantization.default_qconfig  # type: ignore[assignment]
    return layer


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "lazy": lambda: OwnLazyConv2d(4, 3),
    "quantized": prepared_for_quantization,
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_would_use_the_vendor_library_are_rejected(name: str) -> None:
    layer = REFUSED[name]()
    native = nn.ModuleDict({"plain": nn.Conv2d(3, 4, 3), "block": nn.ModuleDict({name: layer})})
    before = classes(native)
    with pytest.raises(ValueError, match=rf"no vendor-free form of block\.{name} \({type(layer).__name__}\);.*skip"):
        swap_convs(native)
    assert classes(native) == before, "no layer has been changed"
    assert "plan" not in vars(native["plain"])


def test_error_lists_all_rejected_layers_and_the_root() -> None:
    with pytest.raises(ValueError, match=r"0 \(OwnLazyConv2d\), 1 \(Conv2d\);"):
        swap_convs(nn.Sequential(OwnLazyConv2d(4, 3), prepared_for_quantization(), nn.Linear(3, 3)))
    with pytest.raises(ValueError, match=r"\(root\) \(OwnLazyConv2d\)"):
        swap_convs(OwnLazyConv2d(4, 3))


OWN: dict[str, Callable[[], nn.Module]] = {
    "super": lambda: OwnConv2d(4, 4, 3),
    "padding": lambda: SameConv2d(4, 6, 3, stride=2, groups=2),
    "standardized": lambda: StandardizedConv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "activation": lambda: BatchNormAct2d(4),
    "check": lambda: OwnBatchNorm2d(4),
    "synchronized": lambda: nn.SyncBatchNorm(4),
    "parametrized": lambda: parametrizations.weight_norm(nn.Conv2d(4, 4, 3)),
    "parametrized subclass": lambda: parametrizations.spectral_norm(SameConv2d(4, 4, 3)),
    "parametrized transposed": lambda: parametrizations.weight_norm(nn.ConvTranspose2d(4, 2, 3)),
}


@pytest.mark.parametrize("name", OWN)
def test_layers_with_methods_of_their_own_keep_them_without_a_vendor_operator(name: str) -> None:
    torch.manual_seed(0)
    native = OWN[name]().double()
    before = type(native)
    swapped = swap_convs(copy.deepcopy(native))
    results = []
    for layer in (native, swapped):
        input = torch.linspace(-1, 1, 2 * 4 * 7 * 7, dtype=torch.float64).view(2, 4, 7, 7).requires_grad_()
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            output = layer(input)
            gradients = torch.autograd.grad(output.square().sum(), [input, *layer.parameters()])
        assert bool(vendor_operators(trace)) == (layer is native)
        results.append((output, *gradients, *layer.state_dict().values()))
    torch.testing.assert_close(*results)
    assert isinstance(swapped, before.__bases__[0] if "parametrized" in name else before)
    assert swap_convs(swapped) is swapped
    twin = copy.deepcopy(swapped)
    torch.testing.assert_close(twin.eval()(input), swapped.eval()(input))
    restored = unswap_convs(swapped)
    assert (type(restored).__name__, type(restored).__bases__) == (before.__name__, before.__bases__)
    assert "plan" not in vars(restored)
    torch.testing.assert_close(restored.eval()(input), native.eval()(input))


def test_a_layer_with_its_own_forward_is_pickled_and_uses_the_plan() -> None:
    plan, input = AutotunedPlan(0), torch.randn(1, 3, 8, 8)
    swapped = swap_convs(SameConv2d(3, 4, 3), plan=plan)
    output = swapped(input)
    assert plan.decisions
    twin = pickle.loads(pickle.dumps(swap_convs(swapped)))
    torch.testing.assert_close(twin(input), output)
    assert type(unswap_convs(twin)) is SameConv2d


def test_a_layer_parametrized_after_the_swap_is_unswapped() -> None:
    layer, input = swap_convs(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 8, 8)
    parametrizations.weight_norm(layer)
    expected = layer(input)
    unswap_convs(layer)
    assert [kind.__name__ for kind in type(layer).__mro__[:2]] == ["ParametrizedConv2d", "Conv2d"]
    torch.testing.assert_close(layer(input), expected)
    remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Conv2d


def test_a_compiled_layer_with_its_own_forward() -> None:
    torch.compiler.reset()
    native, input = SameConv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    expected = native(input)
    compiled = torch.compile(swap_convs(native), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(input), expected)
    torch.compiler.reset()


def test_skipped_layers_and_their_children_are_not_converted() -> None:
    native = nn.ModuleDict({"own": OwnConv2d(3, 4, 3), "plain": nn.Conv2d(3, 4, 3), "branch": model()})
    swap_convs(native, skip=("own", "branch"))
    assert classes(native["branch"]) == classes(model())
    assert [type(native["own"]), type(native["plain"])] == [OwnConv2d, GemmConv2d]
    root = OwnConv2d(3, 4, 3)
    assert swap_convs(root, skip=[""]) is root


def test_an_unknown_name_in_skip_is_an_error() -> None:
    with pytest.raises(ValueError, match="skip contains '3', which is not a submodule"):
        swap_convs(model(), skip=["3"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "reparametrise", [weight_norm, spectral_norm, lambda layer: l1_unstructured(layer, "weight", 5)]
)
def test_weights_computed_by_hooks_are_preserved(reparametrise: Callable[[nn.Module], nn.Module]) -> None:
    layer, input = reparametrise(nn.Conv2d(3, 4, 3).double()).eval(), torch.randn(1, 3, 8, 8).double()
    results = []
    for _ in range(2):
        output = layer(input)
        results.append((output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))))
        swap_convs(layer)
    assert type(layer) is GemmConv2d
    torch.testing.assert_close(*results)


def test_one_plan_for_all_convolutions_until_unswapped() -> None:
    plan, native = AutotunedPlan(0), model()
    swap_convs(native, plan=plan)(torch.randn(2, 3, 8, 8)).sum().backward()
    assert [native[0].plan, native[2][1].plan] == [plan, plan]
    assert plan.decisions
    assert copy.deepcopy(native)[0].plan is plan
    assert "plan" not in unswap_convs(native)[0].__dict__
    assert swap_convs(native)[0].plan is DEFAULT_PLAN


def test_unswap_does_not_change_subclasses() -> None:
    class Own(GemmConv2d):
        pass

    assert type(unswap_convs(Own(3, 4, 3))) is Own


def test_subclass_with_another_constructor_only_is_swapped_copied_pickled_and_unswapped() -> None:
    native, input = Square(3), torch.randn(1, 3, 8, 8)
    expected = native(input)
    plan = AutotunedPlan(0)
    swapped = swap_convs(native, plan=plan)
    assert isinstance(swapped, GemmConv2d)
    assert isinstance(swapped, Square)
    assert swapped.sides() == 4
    assert swapped.plan is plan
    torch.testing.assert_close(swapped(input), expected)
    assert type(swap_convs(swapped)) is type(native)
    for twin in (copy.deepcopy(swap_convs(Square(3))), pickle.loads(pickle.dumps(swap_convs(Square(3))))):
        assert type(twin) is type(swapped)
        assert type(unswap_convs(twin)) is Square
    assert type(unswap_convs(native)) is Square
    assert "plan" not in vars(native)


class HeldInPlainContainers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.stages = [self.first, nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3))]
        self.heads = {"mask": (nn.BatchNorm2d(4), nn.ReLU())}
        self.__dict__["teacher"] = nn.Conv2d(3, 4, 3)
        self.sizes = list(range(2000))


def test_layers_in_plain_lists_and_dictionaries_are_named() -> None:
    held = HeldInPlainContainers()
    names = r"part\.stages\[1\]\.1 .*, part\.heads\['mask'\]\[0\] .*, part\.teacher "
    parent = nn.ModuleDict({"part": held})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap_convs(parent, skip=["part"])
    with pytest.warns(UserWarning, match=f"swap_convs has not converted {names}.*use torch.nn.ModuleList"):
        swap_convs(parent)
    assert type(held.first) is GemmConv2d
    swap_convs(held.stages[1])
    with pytest.warns(
        UserWarning, match=r"unswap_convs has not converted part\.stages\[1\]\.1 \(GemmConv2d\): layers in"
    ):
        unswap_convs(parent)


def test_name_in_place_of_a_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"converts a torch\.nn\.Module, got 'resnet18'"):
        swap_convs("resnet18")  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": "01"}, "skip must be a list of names, as ['backbone.conv1'], got '01'"),
        ({"plan": "autotune"}, "plan must be a Plan or an AutotunedPlan, got 'autotune'"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        swap_convs(nn.Conv2d(3, 4, 3), **options)
