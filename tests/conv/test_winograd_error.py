"""Rounding of the Winograd kernels on activations and gradients of a training, against float64."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor, nn

from tests.conv.emulation import COMPILER, LibraryLauncher, compile_emulated
from tests.conv.test_fused import nhwc, only_tile, problem_of
from tests.helpers.data_module import data_module
from yolo_lightning.conv.kernels import fused_launch
from yolo_lightning.data.loader_settings import LoaderSettings
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.module import YOLOModule
from yolo_lightning.training.recipe import Recipe

WINOGRAD = (fused_launch.WINOGRAD, fused_launch.WINOGRAD_SUMS)
DIRECT = tuple(tile for tile in (*fused_launch.TILES, *fused_launch.SUM_TILES) if not tile.is_winograd)
LIMIT = 4.0  # error of the Winograd kernels as a multiple of that of the others
Captured = tuple[Tensor, Tensor, Tensor, int]  # input, weight, gradient of the output, padding


def train(root: Path, index_root: Path, run: Path) -> list[Captured]:
    """Return what every 3x3 convolution with stride 1 gets in the last of 40 training steps."""
    seed_everything(0)
    native = ConvolutionSettings(backend="native", memory_format="contiguous")
    model = YOLOModule(convolution=native, recipe=Recipe(nominal_batch=4, warmup_epochs=1.0))
    loader = LoaderSettings(num_workers=0)
    data = data_module(str(root), index_root=str(index_root), image_size=[128, 128], batch_size=4, loader=loader)
    newest: dict[str, Captured] = {}
    for name, layer in model.graph.named_modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3) and layer.stride == (1, 1):

            def keep(layer: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                input, weight, padding = (
                    inputs[0].detach().float(),
                    layer.weight.detach().float(),
                    int(layer.padding[0]),
                )
                if output.requires_grad:
                    output.register_hook(
                        lambda gradient: newest.__setitem__(name, (input, weight, gradient.detach().float(), padding))
                    )

            layer.register_forward_hook(keep)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    # In float64 the training is the same on every processor.
    options = {"precision": "64-true", "max_epochs": 10, "limit_val_batches": 0, "default_root_dir": run}
    Trainer(accelerator="cpu", **options, **quiet).fit(model, data)
    return list(newest.values())


def errors(launch: LibraryLauncher, captured: Captured) -> tuple[Tensor, Tensor]:
    """Return the largest and the root mean square errors of output, input gradient and weight gradient."""
    input, weight, gradient, padding = captured
    problem = problem_of(input, weight, {"padding": padding})
    results = (
        fused_launch.forward(launch, nhwc(input), weight, problem),
        fused_launch.input_gradient(launch, nhwc(gradient), weight, problem),
        fused_launch.weight_gradient(launch, nhwc(input), nhwc(gradient), problem),
    )
    exact = [input.double().requires_grad_(), weight.double().requires_grad_()]
    output = nn.functional.conv2d(*exact, padding=padding)
    expected = (output.detach(), *torch.autograd.grad(output, exact, gradient.double()))
    differences = [result - other for result, other in zip(results, expected, strict=True)]
    return (
        torch.stack([difference.abs().max() for difference in differences]),
        torch.stack([difference.square().mean().sqrt() for difference in differences]),
    )


@pytest.mark.whole_run
def test_error_on_activations_of_a_training(
    look_alike: Path, index_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    # The kernels need channels in groups of eight; a level without a box has no gradient.
    layers = [
        layer for layer in train(look_alike, index_root, tmp_path) if layer[0].shape[1] % 8 == 0 and layer[2].any()
    ]
    launch = LibraryLauncher(compile_emulated(tmp_path, checked=False))
    layer_errors = []
    for tiles in (WINOGRAD, DIRECT):
        with monkeypatch.context() as patch:
            only_tile(patch, *tiles)
            layer_errors.append([errors(launch, layer) for layer in layers])
    for kind, name in enumerate(("largest", "root mean square")):
        ratios = torch.stack(
            [winograd[kind] / direct[kind] for winograd, direct in zip(*layer_errors, strict=True)]
        ).amax(0)
        print(f"{len(layers)} layers, {name} error as a multiple: {[round(float(ratio), 2) for ratio in ratios]}")
        assert (ratios <= LIMIT).all(), (name, ratios)
