"""Stage `stability`: two equal trainings must be finite and equal, and must not leak memory."""

from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from yolo_lightning.commands.benchmark.baselines import Variant, make_plan
from yolo_lightning.commands.benchmark.stability import run_stability
from yolo_lightning.commands.benchmark_gpu.devices import open_device
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext

STEPS, QUICK_STEPS = 200, 10
FULL, QUICK = (8, 320), (2, 64)
"""Images per batch and pixels."""


def measure(context: StageContext) -> dict[str, Any]:
    """Return the results for the algorithms of the table, and with compiled kernels."""
    device = open_device(context.device)
    batch_size, image_size = QUICK if context.quick else FULL
    result: dict[str, Any] = {"batch": batch_size, "runs": {}}
    for variant in (Variant.GEMM_NHWC, Variant.GEMM_COMPILED):
        if context.left_s() < 0:
            break
        context.announce(variant.value)
        found = run_stability(
            make_plan(variant, 0.0),
            device,
            partial(torch.autocast, device.type, torch.bfloat16, enabled=False),
            steps=QUICK_STEPS if context.quick else STEPS,
            image_size=image_size,
            batch_size=batch_size,
        )
        # The few steps of a rehearsal end before the memory use of a CPU has settled.
        found.passed |= context.quick and found.failure is None and found.finite and found.equal
        result["runs"][variant.value] = asdict(found) | {"growth_judged": not context.quick}
        context.save(result)
    failed = [name for name, run in result["runs"].items() if not run["passed"]]
    return result | {"passed": not failed, "reason": f"failed: {', '.join(failed)}" if failed else ""}
