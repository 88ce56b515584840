"""Stages `training` and `memory`: training runs, is repeatable and does not leak, and fits into a 6 GiB card."""

import math
import os
import warnings
from typing import Any

import torch

from yolo_lightning.commands.benchmark.conv_variants import Variant, settings_of
from yolo_lightning.commands.benchmark.findings import MIB, NOT_MEASURED, first_line, table
from yolo_lightning.commands.benchmark.section import Section, free_cached_memory, memory_bytes
from yolo_lightning.commands.benchmark.trainer_steps import TrainerSteps
from yolo_lightning.utils.process_identity import read_process

STEPS, QUICK_STEPS = 200, 10
CPU_GROWTH_BYTES = 32 * MIB
"""Tolerance on a CPU: the heap of the C library varies by some MiB."""
DEVICE_GROWTH_BYTES = MIB

LIMIT_BYTES = 6 * 2**30
MOST_IMAGES, QUICK_MOST_IMAGES = 128, 4
MOST_SPLITS = 2
LIMITED = (Variant.GEMM, Variant.GEMM_KERNELS, Variant.GEMM_CHECKPOINTING, Variant.NATIVE_NHWC)
COLUMNS = {"variant": "variant", "largest": "largest batch",
           "out_of_memory_at": "out of memory at", "images_at_once": "images at once after the split",
           "failure": "failure"}  # fmt: skip


def training(section: Section) -> None:
    """Train twice from one seed with the algorithms of the table, and with GPU kernels, and compare the trainings."""
    allowed = CPU_GROWTH_BYTES if section.device.type == "cpu" else DEVICE_GROWTH_BYTES
    steps, rows, runs = QUICK_STEPS if section.quick else STEPS, [], {}
    for variant in section.variants(Variant.GEMM, Variant.GEMM_KERNELS):
        section.announce(f"two trainings, {variant}")
        runs[variant.value] = run = _two_trainings(section, variant, steps)
        # The few steps of a rehearsal end before the memory use of a CPU has settled.
        grows = not section.quick and run["growth_bytes"] > allowed
        checks = {"is not finite": run["finite"], "differs": run["equal"], "memory grows": not grows}
        reasons = [run["failure"]] if run["failure"] else [text for text, holds in checks.items() if not holds]
        section.findings.fail([f"{variant}: {reason}" for reason in reasons])
        section.save(steps=steps, runs=runs)
        losses = "{:.3f} to {:.3f}".format(*run["losses"])
        rows.append(
            [variant, run["failure"] or run["finite"], run["equal"], f"{run['growth_bytes'] / MIB:+.1f}", losses]
        )
    section.findings.add(
        f"Two trainings of {steps} steps from one seed, {section.conditions}: losses are finite, weights are equal bit"
        f" for bit, and the memory use grows by at most {allowed / MIB:.0f} MiB after a fifth of the steps."
    )
    headings = ["variant", "losses finite", "weights equal", "memory growth MiB", "loss per image"]
    section.findings.add(*table(headings, rows))
    section.findings.answer = ", ".join(f"{row[0]}: loss {row[-1]} in {steps} steps" for row in rows)


def _two_trainings(section: Section, variant: Variant, steps: int) -> dict[str, Any]:
    """Train twice from one seed on the same batches, with an optimizer step in every step; an error is recorded.

    On an accelerator, deterministic algorithms of PyTorch are enabled where they exist.
    """
    parts = (1, steps // 5, steps - steps // 5 - 1)
    losses, growth_bytes, weights, failure = [math.nan], 0, [], None
    try:
        with settings_of(variant, section.device), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*deterministic.*")
            torch.use_deterministic_algorithms(section.device.type != "cpu", warn_only=True)
            for _ in range(2):
                work = TrainerSteps(section, variant, section.batch_size, nominal_batch=section.batch_size)
                metrics, used = zip(*((work.train(part), used_bytes(section.device)) for part in parts), strict=True)
                losses = [float("nan" if one["train/skipped"] else one["train/loss"]) for one in metrics]
                growth_bytes = used[2] - used[1]
                weights.append(work.module.graph.state_dict())
    except Exception as error:  # any error is a result
        failure = first_line(error)
    equal = len(weights) == 2 and all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    return {
        "failure": failure,
        "losses": [losses[0], losses[-1]],
        "finite": all(map(math.isfinite, losses)),
        "equal": equal,
        "growth_bytes": growth_bytes,
    }


def used_bytes(device: torch.device) -> int:
    """Return the memory that tensors use on a GPU, or the resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    process = read_process(os.getpid())
    return 0 if process is None else process.memory_bytes


def memory(section: Section) -> None:
    """Measure the largest batch within the limit; a device without a limit, as a CPU, trains a few images only."""
    is_limited, found = limit_memory(section.device), []
    most = QUICK_MOST_IMAGES if section.quick or not is_limited else MOST_IMAGES
    for variant in section.variants(*(LIMITED[:1] if section.quick else LIMITED)):
        if section.left_s() > 0:
            found.append({"variant": variant.value, **largest_batch(section, variant, most)})
            section.save(limit_bytes=LIMIT_BYTES, within_limit=found)
    section.findings.add(
        f"Largest batch (a power of two up to {most}) within {LIMIT_BYTES / 2**30:g} GiB of PyTorch's allocator"
        f"{'' if is_limited else ', which this device cannot limit'}, and a step with the next size, which the guarded"
        " step may split."
    )
    rows = [[NOT_MEASURED if row[name] is None else row[name] for name in COLUMNS] for row in found]
    section.findings.add(*table([*COLUMNS.values()], rows))
    largest = ", ".join(f"{row['variant']} {row['largest']}" for row in found)
    section.findings.answer = f"largest batch within {LIMIT_BYTES / 2**30:g} GiB: {largest}"
    failures = [f"{row['variant']}: {row['failure']}" for row in found if row["failure"] and "gemm" in row["variant"]]
    section.findings.fail(failures)


def largest_batch(section: Section, variant: Variant, most: int) -> dict[str, Any]:
    """Return the largest power of two of images that trains, and what happens with twice as many images."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS.keys() - {"variant"}) | {"largest": 0}
    images = 1
    try:
        with settings_of(variant, section.device):
            while images <= most and section.left_s() > 0:
                section.announce(f"memory, {variant}, {images} images")
                try:
                    TrainerSteps(section, variant, images).train(1)
                except torch.OutOfMemoryError:
                    row["out_of_memory_at"] = images
                    break
                row["largest"], images = images, images * 2
                free_cached_memory(section.device)
            free_cached_memory(section.device)
            if row["out_of_memory_at"] is not None and row["largest"]:
                section.announce(f"memory, {variant}, {images} images, split")
                work = TrainerSteps(section, variant, images, max_oom_splits=MOST_SPLITS)
                work.train(1)
                row["images_at_once"] = work.module.guarded_step.images_at_once
    except Exception as error:  # also a library that reports a lack of memory by another error
        row["failure"] = f"{images} images: {first_line(error)}"
    free_cached_memory(section.device)
    return row


def limit_memory(device: torch.device) -> bool:
    """Limit the memory that torch may allocate in this process; return whether the device supports the limit."""
    total, module = memory_bytes(device), torch.get_device_module(device)
    if total is None or total <= LIMIT_BYTES or not hasattr(module, "set_per_process_memory_fraction"):
        return False
    module.set_per_process_memory_fraction(LIMIT_BYTES / total)
    return True
