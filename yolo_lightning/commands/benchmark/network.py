"""Passes through the whole network and the whole training step, on random images."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from yolo_lightning.commands.benchmark.baselines import Variant, convert_graph
from yolo_lightning.commands.benchmark.timing import Pass
from yolo_lightning.conv import Plan
from yolo_lightning.data.batch import Batch
from yolo_lightning.data.boxes import Letterbox
from yolo_lightning.module import YOLOModule

BOXES_PER_FRAME = 9
STAGES = ("forward", "loss", "backward", "optimizer")

Autocast = Callable[[], torch.autocast]


def synthetic_batch(batch_size: int, image_size: int, classes: int, seed: int) -> Batch:
    """Return noise images with 5 to 13 boxes each, whose sides are 2 to 20 % of the image side; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(BOXES_PER_FRAME - 4, BOXES_PER_FRAME + 5, (batch_size,), generator=generator)
    number = int(counts.sum())
    sides = 0.02 + 0.18 * torch.rand(number, 2, generator=generator)
    centres = sides / 2 + (1 - sides) * torch.rand(number, 2, generator=generator)
    shape = (batch_size, 1, image_size, image_size)
    return Batch(
        images=torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator),
        boxes=torch.cat((centres, sides), dim=1),
        labels=torch.randint(0, classes, (number,), generator=generator),
        sample_index=torch.arange(batch_size).repeat_interleave(counts),
        image_ids=tuple(map(str, range(batch_size))),
        frame_shapes=((image_size, image_size),) * batch_size,
        letterboxes=(Letterbox(1.0, 0, 0),) * batch_size,
        readable=(True,) * batch_size,
    )


def make_module(seed: int) -> YOLOModule:
    """Return YOLOv8n with the default recipe, native convolutions and random weights, in training mode on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return YOLOModule("yolov8n", conv_backend="native").train()


def variant_module(plain: YOLOModule, variant: Variant, plan: Plan, device: torch.device) -> YOLOModule:
    """Return a copy of `plain` with equal weights and the convolutions of `variant`."""
    module = copy.deepcopy(plain)
    convert_graph(module.graph, variant, plan)
    return module.to(device)


def graph_pass(module: YOLOModule, batch: Batch, autocast: Autocast) -> Pass:
    """Return the forward and backward pass of the network; the sum of the outputs replaces the loss."""

    def forward(_: None) -> Tensor:
        with autocast():
            raw = module(batch.images)
        return torch.stack([raw[name].float().sum() for name in ("boxes", "scores")]).sum()

    def backward(total: Tensor) -> None:
        total.backward()  # type: ignore[no-untyped-call]
        module.graph.zero_grad()

    return Pass((("forward", forward), ("backward", backward)), tuple(module.graph.parameters()))


def step_pass(module: YOLOModule, batches: list[Batch], autocast: Autocast) -> Pass:
    """Return a training step that cycles through `batches`: forward, loss, backward, optimizer step with clipping.

    The pass returns the loss per image as a 0-d tensor. The recipe accumulates gradients over several steps, so a
    training spends less time in the optimizer.
    """
    optimizer = module.configure_optimizers()
    steps = 0

    def forward(_: None) -> tuple[Any, Batch]:
        nonlocal steps
        batch = batches[steps % len(batches)]
        steps += 1
        with autocast():
            return module(batch.images), batch

    def loss(state: tuple[Any, Batch]) -> Tensor:
        raw, batch = state
        with autocast():
            total, _ = module.detection_loss(raw, batch)
        return total / len(batch)

    def backward(mean: Tensor) -> Tensor:
        (mean * len(batches[0])).backward()  # type: ignore[no-untyped-call]
        return mean.detach()

    def optimizer_step(mean: Tensor) -> Tensor:
        clip_grad_norm_(module.graph.parameters(), module.recipe.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return mean

    functions: tuple[Callable[[Any], Any], ...] = (forward, loss, backward, optimizer_step)
    return Pass(tuple(zip(STAGES, functions, strict=True)), tuple(module.graph.parameters()))
