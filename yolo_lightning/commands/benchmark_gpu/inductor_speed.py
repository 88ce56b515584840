"""Stage `inductor`: the network compiled by inductor with Triton convolutions, where Triton is installed."""

import importlib.util
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from yolo_lightning.commands.benchmark.baselines import Variant, make_plan
from yolo_lightning.commands.benchmark.comparison import Pass, compare
from yolo_lightning.commands.benchmark.passes import graph_pass, make_module, synthetic_batch, variant_module
from yolo_lightning.commands.benchmark_gpu.devices import open_device
from yolo_lightning.commands.benchmark_gpu.stage_process import StageContext
from yolo_lightning.commands.benchmark_gpu.variant_speed import FULL, NETWORK_ROUNDS, QUICK, QUICK_ROUNDS, excluded

NAME = "native-nhwc, inductor"


def measure(context: StageContext) -> dict[str, Any]:
    """Return the time of the network compiled by inductor, and of ours, in turns."""
    device = open_device(context.device)
    if importlib.util.find_spec("triton") is None or device.type == "cpu":
        reason = "Triton does not compile for a CPU" if device.type == "cpu" else "Triton is not installed"
        return {"passed": True, "not_measured": reason}
    if Variant.NATIVE_NHWC in excluded(context, device):
        return {"passed": True, "not_measured": excluded(context, device)[Variant.NATIVE_NHWC]}
    from torch._inductor import config

    # Inductor measures only its own templates, so that no vendor kernel is selected. Names vary between versions.
    wanted: dict[str, Any] = {"max_autotune": True, "max_autotune_conv_backends": "TRITON", "conv_1x1_as_mm": True}
    options = {name: value for name, value in wanted.items() if hasattr(config, name)}
    batch_size, image_size = QUICK if context.quick else FULL
    plain, batch = make_module(0), synthetic_batch(batch_size, image_size, 0).to(device)
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=False)

    def prepare(variant: Variant) -> Pass:
        context.announce(f"network, {variant.value}")
        module = variant_module(plain, variant, make_plan(variant, 0.0), device)
        if variant is Variant.NATIVE_NHWC:
            context.announce("compiling with inductor")
            compiled: Any = torch.compile(module.graph, options=options)
            module.graph = compiled
        return graph_pass(module, batch, autocast)

    order = (Variant.GEMM_NHWC, Variant.GEMM_COMPILED, Variant.NATIVE_NHWC)
    found = compare(
        {variant: partial(prepare, variant) for variant in order},
        device,
        repeats=QUICK_ROUNDS if context.quick else NETWORK_ROUNDS,
        footprints=False,
        profiled=False,
    )
    rows = [asdict(one) | {"variant": NAME if one.variant is Variant.NATIVE_NHWC else one.variant} for one in found]
    return {"passed": True, "batch": batch_size, "image_size": image_size, "options": options, "network": rows}
