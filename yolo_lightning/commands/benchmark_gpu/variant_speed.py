"""Stage `speed`: the network and a real training step, ours and the baselines, in turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from yolo_lightning.commands.benchmark.baselines import DESCRIPTIONS, Variant, libraries, make_plan
from yolo_lightning.commands.benchmark.comparison import Pass, Result, Spread, compare, rounds
from yolo_lightning.commands.benchmark.passes import graph_pass, make_module, synthetic_batch, variant_module
from yolo_lightning.commands.benchmark_gpu.devices import open_device
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.commands.benchmark_gpu.stage_records import Stage, StageState, read_record_of
from yolo_lightning.commands.benchmark_gpu.trainer_steps import TrainerSteps

ORDER = (
    *(Variant.GEMM_NHWC, Variant.GEMM_TF32, Variant.GEMM_AUTOTUNE, Variant.GEMM_COMPILED),
    *(Variant.UNFOLD, Variant.SLOW, Variant.NATIVE_NHWC, Variant.NATIVE, Variant.NATIVE_TF32),
)
"""Ours first, and the variants that may hang last; see `make_plan` for the order of the gemm variants."""
HALF = (Variant.GEMM_NHWC, Variant.GEMM_COMPILED, Variant.NATIVE_NHWC)
FULL, QUICK = (8, 640), (2, 64)
"""Images per batch and pixels."""
NETWORK_ROUNDS, STEP_ROUNDS, STEPS = 7, 5, 8
QUICK_ROUNDS, QUICK_STEPS = 1, 1
"""Eight steps of eight images contain one optimizer step."""
AUTOTUNE_S, QUICK_AUTOTUNE_S = 20.0, 1.0
USABLE = ("works", "is slower")
"""Outcomes of doctor's test of the native convolutions after which they can be measured."""


def measure(context: StageContext) -> dict[str, Any]:
    """Return the times of the network in float32 and bfloat16, and of a training step, for each variant."""
    device = open_device(context.device)
    left_out = excluded(context, device)
    variants = [variant for variant in ORDER if variant not in left_out]
    batch_size, image_size = QUICK if context.quick else FULL
    result: dict[str, Any] = {
        "batch": batch_size,
        "image_size": image_size,
        "excluded": {variant.value: reason for variant, reason in left_out.items()},
        "variants": {variant.value: DESCRIPTIONS.get(variant, "native, channels_last") for variant in variants},
    }
    result["variants"][Variant.GEMM_NHWC.value] = "ours: algorithms by the table, channels_last"
    autotune_s = QUICK_AUTOTUNE_S if context.quick else AUTOTUNE_S
    measured = partial(_network, context, device)
    context.announce("network, float32")
    result["network"] = [asdict(one) for one in measured(variants, False, autotune_s)]
    context.save(result)
    context.announce("network, bfloat16")
    result["network_bfloat16"] = [
        asdict(one) for one in measured([one for one in HALF if one in variants], True, autotune_s)
    ]
    context.save(result)
    result["step"] = []
    for rows in _steps(context, device, variants, autotune_s):
        result["step"] = rows
        context.save(result)
    broken = [row["variant"] for row in result["step"] if row["failure"] and row["variant"].startswith("gemm")]
    return result | {"passed": not broken, "reason": f"failed: {', '.join(broken)}" if broken else ""}


def excluded(context: StageContext, device: torch.device) -> dict[Variant, str]:
    """Return the variants that cannot be measured on this machine, with the reasons."""
    found: dict[Variant, str] = {}
    if device.type not in ("cuda", "cpu"):
        found[Variant.SLOW] = "this device has no switch for its vendor library"
    if device.type != "cuda" or torch.version.hip:
        reason = "TF32 exists on NVIDIA GPUs only"
        found |= {Variant.NATIVE_TF32: reason, Variant.GEMM_TF32: reason}
    machine, reason = read_record_of(context.out, Stage.MACHINE), ""
    if machine is not None and machine.state is StageState.TIMED_OUT:
        reason = f"the tests of doctor hang: {machine.reason}"
    elif machine is not None and (probe := machine.result.get("probes", {}).get("convolution")):
        is_usable = probe["outcome"] in USABLE
        reason = "" if is_usable else f"doctor: the native convolution {probe['outcome']}: {probe['detail']}"
    if reason:
        found |= {variant: reason for variant in ORDER if variant.implementation == "native"}
    return found


def _network(
    context: StageContext, device: torch.device, variants: Sequence[Variant], half: bool, autotune_s: float
) -> list[Result]:
    batch_size, image_size = QUICK if context.quick else FULL
    plain = make_module(0)
    batch = synthetic_batch(batch_size, image_size, 0).to(device)
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=half)

    def prepare(variant: Variant) -> Pass:
        context.announce(f"network, {variant.value}{', bfloat16' if half else ''}")
        return graph_pass(variant_module(plain, variant, make_plan(variant, autotune_s), device), batch, autocast)

    passes: dict[Variant, Callable[[], Pass]] = {variant: partial(prepare, variant) for variant in variants}
    repeats = QUICK_ROUNDS if context.quick else NETWORK_ROUNDS
    return compare(passes, device, repeats=repeats, footprints=True, profiled=not context.quick)


def _steps(context: StageContext, device: torch.device, variants: Sequence[Variant], autotune_s: float) -> Any:
    """Yield the rows of the table of steps after every round; the variant that starts changes from round to round."""
    batch_size, image_size = QUICK if context.quick else FULL
    count, steps = (QUICK_ROUNDS, QUICK_STEPS) if context.quick else (STEP_ROUNDS, STEPS)
    prepared: dict[Variant, TrainerSteps] = {}
    samples: dict[Variant, list[float]] = {variant: [] for variant in variants}
    failures: dict[Variant, str] = {}

    def turn(variant: Variant) -> None:
        if variant in prepared:
            samples[variant].append(prepared[variant].run(steps))
            return
        work = TrainerSteps(
            variant,
            make_plan(variant, autotune_s),
            device,
            batch_size=batch_size,
            image_size=image_size,
            folder=context.out / "work",
        )
        work.run(1, 1)
        prepared[variant] = work

    longest_s = 0.0
    for number, order in enumerate((tuple(variants), *rounds(variants, count))):
        began_s = time.monotonic()
        if number > 1 and context.left_s() < longest_s:
            return
        for variant in order:
            if variant in failures:
                continue
            context.announce(f"training step, {variant.value}, round {number}")
            try:
                with libraries(variant, device, False):
                    turn(variant)
            except Exception as error:  # a failure of a baseline is a result
                failures[variant] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                prepared.pop(variant, None)
        longest_s = max(longest_s, time.monotonic() - began_s) if number else 0.0
        if number:
            yield [_step_row(variant, samples, failures.get(variant)) for variant in variants]


def _step_row(variant: Variant, samples: dict[Variant, list[float]], failure: str | None) -> dict[str, Any]:
    own = None if failure else Spread(tuple(samples[variant]))
    return {"variant": variant.value, "failure": failure, "total": None if own is None else asdict(own)}
