"""Sections `layers`, `graph` and `step`: the convolutions of this package beside native and further baselines."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from yolo_lightning.commands.benchmark.comparison import (
    Result,
    Timer,
    compare,
    fastest,
    ratio,
    record_failures,
    result_table,
)
from yolo_lightning.commands.benchmark.conv_variants import Variant
from yolo_lightning.commands.benchmark.findings import NOT_MEASURED, ms, table
from yolo_lightning.commands.benchmark.passes import find_layers, make_module, time_graph, time_layer
from yolo_lightning.commands.benchmark.section import Section, open_device
from yolo_lightning.commands.benchmark.trainer_steps import TrainerSteps
from yolo_lightning.data.image_size import STRIDE, ImageSize
from yolo_lightning.utils.choices import check_range

STEPS = 8
"""Steps per measurement: eight steps of eight images contain one optimizer step."""
Convolutions = Literal["layers", "graph", "step"]
Implementation = Literal["native", "slow", "gemm"]
Precision = Literal["32-true", "bf16-mixed"]
EPOCH_IMAGES = 329_299
"""Training frames of LTDv2."""


def convolutions(
    section: Convolutions,
    *,
    device: str = "auto",
    skip: list[Implementation] | None = None,
    batch_size: int = 4,
    image_size: int | Sequence[int] = 640,
    repeats: int = 7,
    precision: Precision = "32-true",
) -> None:
    """Compare the convolutions of yolo_lightning.conv (gemm) with native PyTorch convolutions.

    Runs YOLOv8n on random images. All variants run in one process and take turns; a variant that raises an error is
    listed with the error. `benchmark loader --help` and `benchmark gpu --help` describe the other sections.

    Args:
        section: layers (each distinct convolution, forward and backward), graph (the network, forward and backward) or
            step (a training step of YOLOModule under Lightning).
        device: auto, cpu, cuda, cuda:1, xpu, mps; auto selects the accelerator if there is one.
        skip: Implementations to skip. A vendor kernel that hangs cannot be interrupted; skip native in this case.
        batch_size: Images per step.
        image_size: Size of the input in pixels, multiples of 32: the side of a square, or `[height, width]`.
        repeats: Number of rounds. Every round measures each variant once; the order rotates and the median is reported.
        precision: 32-true, or bf16-mixed for bfloat16 under autocast.
    """
    check_range("batch_size", batch_size, ">= 1")
    check_range("repeats", repeats, ">= 1")
    size = ImageSize.of("image_size", image_size)
    size.check("image_size", least=2 * STRIDE)
    with tempfile.TemporaryDirectory() as folder:
        measured = Section(
            device=open_device(device),
            batch_size=batch_size,
            image_size=size,
            rounds=repeats,
            precision=torch.bfloat16 if precision == "bf16-mixed" else torch.float32,
            skipped=tuple(skip or ()),
            folder=Path(folder),
        )
        {"layers": layers, "graph": graph, "step": step}[section](measured)
    measured.findings.finish()


def layers(section: Section) -> None:
    """Measure every distinct convolution of YOLOv8n alone, forward and backward."""
    variants = section.variants(*(variant for variant in Variant if variant is not Variant.GEMM_CHECKPOINTING))
    graph, rows, measured, failed = make_module().graph, [], [], []
    sums_s: list[float] = []  # of each variant, of the fastest ones of this package, and of the fastest native ones
    found = find_layers(graph, section.image_size, section.batch_size)
    for layer in found[:2] if section.quick else found:
        section.announce(f"layer {layer.label}")
        works = {variant: partial(time_layer, section, layer, graph, variant) for variant in variants}
        results = compare(section, works)
        failed += [one for one in results if one.failure]
        ours, native = fastest(results, "gemm"), fastest(results, "native")
        times_s = [one.median_s if one else math.nan for one in (*results, ours, native)]
        relative = ratio(ours, native)
        operations = f"{layer.operations / 1e9:.2f}"
        rows.append([layer.label, layer.count, operations, *map(ms, times_s[:-2]), number(relative)])
        measured.append(asdict(layer) | {"results": [asdict(one) for one in results], "ratio": relative})
        section.save(layers=measured)
        before_s = sums_s or [0.0] * len(times_s)
        sums_s = [layer.count * time_s + sum_s for time_s, sum_s in zip(times_s, before_s, strict=True)]
        if section.left_s() < 0:
            break
    total = sums_s[-2] / sums_s[-1]
    rows.append(["sum", sum(one["count"] for one in measured), "", *map(ms, sums_s[:-2]), number(total)])
    section.findings.add(f"Single convolutions, forward and backward, {section.conditions}.")
    headings = ["layer", "count", "GFLOP", *(f"{variant} ms" for variant in variants), "fastest gemm / native"]
    section.findings.add(*table(headings, rows))
    record_failures(section.findings, failed)
    slower = sum(one["ratio"] > 1 for one in measured)
    section.findings.verdict = verdict(total)
    section.findings.answer = (
        f"the convolutions take {number(total)} times as long as native; {slower} of {len(measured)} layers are slower"
    )


def graph(section: Section) -> None:
    """Measure the network, forward and backward."""
    _report(section, "Network, forward and backward", compare(section, time_graph(section, *Variant)))


def network(section: Section) -> None:
    """Measure the network in float32, then under bfloat16 autocast."""
    graph(section)
    answer, section.precision = section.findings.answer, torch.bfloat16
    half = (Variant.GEMM, Variant.GEMM_KERNELS, Variant.NATIVE_NHWC)
    _report(section, "Network, forward and backward", compare(section, time_graph(section, *half)), "bfloat16")
    section.findings.answer = f"{answer}; bfloat16: {section.findings.answer}"


def step(section: Section) -> None:
    """Measure a training step of YOLOModule in a Lightning Trainer."""

    def prepare(variant: Variant) -> Timer:
        section.announce(f"training step, {variant}, {section.conditions}")
        return TrainerSteps(section, variant, section.batch_size).time

    works = {variant: partial(prepare, variant) for variant in section.variants(*Variant)}
    results = compare(section, works, calls=1 if section.quick else STEPS)
    section.findings.add(
        "YOLOModule in a Lightning Trainer: transfer from page-locked memory (on a GPU), guarded step, loss, clipping,"
        " optimizer step after 64 images, logging. Wall-clock time per step."
    )
    _report(section, "Training step", results)
    best = fastest(results, "gemm", "native")
    if best is not None:
        hours = math.ceil(EPOCH_IMAGES / section.batch_size) * best.median_s / 3600
        section.findings.add(f"An epoch of LTDv2 ({EPOCH_IMAGES:,} frames) with `{best.variant}` takes {hours:.2f} h,"
                             " without data loading and validation.")  # fmt: skip


def _report(section: Section, title: str, results: Sequence[Result], key: str = "results") -> None:
    section.findings.add(f"{title}, {section.conditions}:")
    section.findings.add(*result_table(results, section.batch_size))
    record_failures(section.findings, results)
    ours, native = fastest(results, "gemm"), fastest(results, "native")
    section.findings.answer = ", ".join(f"{one.variant} {ms(one.median_s)} ms" for one in (ours, native) if one)
    if ours and native:
        section.findings.answer += f": {number(ratio(ours, native))} times the time of native"
    section.findings.verdict = verdict(ratio(ours, native))
    section.save(**{key: [asdict(one) for one in results]})


def verdict(value: float) -> str:
    """Return whether a ratio to native means faster."""
    return "unknown" if math.isnan(value) else "yes" if value < 1 else "no"


def number(value: float) -> str:
    """Return a ratio with two digits."""
    return NOT_MEASURED if math.isnan(value) else f"{value:.2f}"
