"""Settings of the convolutions of a graph."""

from typing import Literal

from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, Plan, enable_gpu_kernels
from yolo_lightning.model.layers import Convolution, MemoryFormat
from yolo_lightning.utils.choices import settings_group
from yolo_lightning.utils.files import cache_folder

ConvAlgorithm = Literal["auto", "table", "autotune"]


@settings_group("model.convolution", probe_timeout_s="> 0", autotune_budget_s=">= 0")
class ConvolutionSettings:
    """Implementation of the layers.

    Attributes:
        backend: Convolution implementation. `gemm` needs no vendor library; `native` is PyTorch's own. On a CPU,
            `auto` is native in channels_last. On a GPU, `auto` is native if a test in a child process shows that it
            works and is not slower, else gemm.
        algorithm: Algorithm choice of `gemm`. `table` uses a fixed table; `auto` also uses, on a GPU, kernels that
            are compiled and verified at first use; `autotune` measures the candidates of `auto` at first use.
        memory_format: Memory format of weights and activations; `auto` selects the faster one for `backend`.
        activation_checkpointing: Store fewer activations for the backward pass and recompute the others: less memory,
            more time.
        probe_timeout_s: Seconds without progress after which the test of `backend: auto` counts as hung, > 0.
        autotune_budget_s: Time limit in seconds for the measurements of `autotune`, per process, >= 0.
    """

    backend: Convolution = "auto"
    algorithm: ConvAlgorithm = "auto"
    memory_format: MemoryFormat = "auto"
    activation_checkpointing: bool = False
    probe_timeout_s: float = 60.0
    autotune_budget_s: float = 60.0


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
