"""Plan of the convolutions of a graph."""

from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, Plan, enable_gpu_kernels
from yolo_lightning.model.convolution_settings import Convolution, ConvolutionSettings
from yolo_lightning.utils.files import cache_folder


def plan_of_backend(backend: Convolution, settings: ConvolutionSettings) -> Plan:
    """Return the plan of layers that are arranged for a backend; native layers need none and enable no kernels."""
    if backend == "gemm":
        return make_plan(settings)
    return DEFAULT_PLAN


def make_plan(settings: ConvolutionSettings) -> Plan:
    """Return the plan for all `gemm` convolutions of a graph; its results are stored in the user's cache folder.

    On a GPU, `auto` and `autotune` use the verified kernels of this package where they can be built. On a CPU, `auto`
    is the table.
    """
    if settings.algorithm in ("auto", "autotune"):
        enable_gpu_kernels(cache_folder() / "kernels")
    if settings.algorithm != "autotune":
        return DEFAULT_PLAN
    return AutotunedPlan(settings.autotune_budget_s, cache_folder() / "convolution_plan.json")
