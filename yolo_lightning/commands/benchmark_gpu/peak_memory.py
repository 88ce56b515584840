"""Stage `memory`: peak memory of a training step, and the largest batch within the memory of a 6 GiB card."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from yolo_lightning.commands.benchmark.baselines import Variant, libraries, make_plan
from yolo_lightning.commands.benchmark_gpu.devices import (
    begin_peak,
    free_cached_memory,
    limit_memory,
    open_device,
    peak_bytes,
)
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.commands.benchmark_gpu.trainer_steps import TrainerSteps
from yolo_lightning.commands.benchmark_gpu.variant_speed import FULL, ORDER, QUICK, excluded
from yolo_lightning.training.nonfinite import GuardSettings

LIMIT_BYTES = 6 * 2**30
MOST_IMAGES, QUICK_MOST_IMAGES = 128, 4
SIMULATED_IMAGES = 3
"""Where memory cannot be limited, as on a CPU, more images than these raise the error of an accelerator."""
LIMITED = (Variant.GEMM_NHWC, Variant.GEMM_COMPILED, Variant.GEMM_RECOMPUTE, Variant.NATIVE_NHWC)
MOST_SPLITS = 2


def measure(context: StageContext) -> dict[str, Any]:
    """Return the peak memory per variant, and for some variants the largest batch within the limit."""
    device = open_device(context.device)
    left_out = excluded(context, device)
    batch_size, image_size = QUICK if context.quick else FULL
    result: dict[str, Any] = {"batch": batch_size, "image_size": image_size, "limit_bytes": LIMIT_BYTES, "peaks": []}

    def steps(variant: Variant, images: int, splits: int = 0, simulated: bool = False) -> TrainerSteps:
        work = TrainerSteps(
            variant,
            make_plan(variant, 0.0),
            device,
            batch_size=images,
            image_size=image_size,
            folder=context.out / "work",
            guard=GuardSettings(max_oom_splits=splits),
        )
        if simulated:
            work.module.graph.register_forward_pre_hook(_refuse_large_batches)
        return work

    for variant in (*ORDER, Variant.GEMM_RECOMPUTE):
        if variant in left_out or variant.uses_tf32 or variant is Variant.GEMM_AUTOTUNE or context.left_s() < 0:
            continue
        context.announce(f"peak memory, {variant.value}")
        row: dict[str, Any] = {"variant": variant.value, "peak_bytes": None, "failure": None}
        with libraries(variant, device, False):
            try:
                row["peak_bytes"] = peak_of(steps(variant, batch_size), 1 if context.quick else 8, device)
            except Exception as error:  # a failure of a baseline is a result
                row["failure"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        free_cached_memory(device)
        result["peaks"].append(row)
        context.save(result)
    is_limited = limit_memory(device, LIMIT_BYTES)
    result["limit"] = "set_per_process_memory_fraction" if is_limited else (
        f"simulated: more than {SIMULATED_IMAGES} images at once raise torch.OutOfMemoryError"
    )  # fmt: skip
    result["within_limit"] = []
    most = QUICK_MOST_IMAGES if context.quick or not is_limited else MOST_IMAGES
    broken = []
    for variant in LIMITED:
        if variant in left_out or context.left_s() < 0 or (context.quick and variant is not Variant.GEMM_NHWC):
            continue
        with libraries(variant, device, False):
            row = within_limit(context, device, variant, partial(steps, simulated=not is_limited), most)
        free_cached_memory(device)
        result["within_limit"].append(row)
        context.save(result)
        if variant.implementation == "gemm" and row["split"] is not None and row["split"]["failure"]:
            broken.append(f"{variant.value}: {row['split']['failure']}")
    limit_memory(device, None)
    return result | {"passed": not broken, "reason": "; ".join(broken)}


def peak_of(work: TrainerSteps, steps: int, device: torch.device) -> int | None:
    """Return the peak memory of some training steps in bytes, or None if it cannot be measured."""
    begin_peak(device)
    work.run(steps)
    return peak_bytes(device)


def within_limit(
    context: StageContext, device: torch.device, variant: Variant, steps: Callable[..., TrainerSteps], most: int
) -> dict[str, Any]:
    """Return the largest power of two of images that trains, and what happens with twice as many images."""
    row: dict[str, Any] = {
        "variant": variant.value,
        "largest": 0,
        "out_of_memory_at": None,
        "failure": None,
        "split": None,
    }
    images = 1
    while images <= most and context.left_s() > 0:
        context.announce(f"within the limit, {variant.value}, {images} images")
        try:
            steps(variant, images).run(1, 1)
        except torch.OutOfMemoryError:
            row["out_of_memory_at"] = images
            break
        except Exception as error:  # such as a library that reports a lack of memory by another error
            row["failure"] = f"{images} images: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return row
        row["largest"] = images
        images *= 2
        free_cached_memory(device)
    free_cached_memory(device)
    if row["out_of_memory_at"] is None or row["largest"] == 0:
        return row
    context.announce(f"split after out of memory, {variant.value}, {images} images")
    split: dict[str, Any] = {"images": images, "images_at_once": None, "failure": None}
    try:
        work = steps(variant, images, MOST_SPLITS)
        work.run(1, 1)
        split["images_at_once"] = work.module._guarded_step.images_at_once
    except Exception as error:
        split["failure"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    row["split"] = split
    return row


def _refuse_large_batches(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    if len(inputs[0]) > SIMULATED_IMAGES:
        raise torch.OutOfMemoryError(f"simulated: {len(inputs[0])} images do not fit")
