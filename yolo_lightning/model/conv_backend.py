"""Settings of the convolutions of a graph, and the choice of `backend: auto` on a device."""

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from yolo_lightning.conv import DEFAULT_PLAN, AutotunedPlan, Plan, enable_gpu_kernels
from yolo_lightning.conv.probe import device_key, probe_native
from yolo_lightning.conv.trial import TrialSettings
from yolo_lightning.model.layers import Convolution, MemoryFormat, arrange
from yolo_lightning.utils.choices import check_choices, check_range
from yolo_lightning.utils.files import CONVOLUTION_VERDICTS, cache_folder
from yolo_lightning.utils.rank_zero import rank_zero_info

ConvAlgorithm = Literal["auto", "table", "autotune"]


@dataclass(frozen=True)
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

    def __post_init__(self) -> None:
        for name, kind in (("backend", Convolution), ("algorithm", ConvAlgorithm), ("memory_format", MemoryFormat)):
            check_choices(f"model.convolution.{name}", [getattr(self, name)], kind)
        check_range("model.convolution.probe_timeout_s", self.probe_timeout_s, "> 0")
        check_range("model.convolution.autotune_budget_s", self.autotune_budget_s, ">= 0")


def trial_settings(settings: ConvolutionSettings, precision: str = "32-true") -> TrialSettings:
    """Return the settings of a trial that computes layers as training does; `precision` is that of the Trainer.

    The trial may spend a quarter of its time limit on measurements of `autotune`, which later trials need not repeat.
    """
    autocast = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}.get(precision)
    budget_s = min(settings.autotune_budget_s, settings.probe_timeout_s / 4)
    options = asdict(replace(settings, autotune_budget_s=budget_s))
    del options["backend"], options["probe_timeout_s"]  # on which the layers do not depend
    return TrialSettings(f"{__name__}:{_arrange_trial.__name__}", options, autocast)


def _arrange_trial(trial: nn.Module, convolution: Literal["gemm", "native"], **options: Any) -> None:
    """Arrange `conv.trial.ProbedLayers` as `YOLOModule` arranges its graph; `options` are `ConvolutionSettings`."""
    settings = ConvolutionSettings(**options)
    plan = make_plan(settings) if convolution == "gemm" else DEFAULT_PLAN
    arrange(trial, convolution, settings.activation_checkpointing, plan, settings.memory_format)


@cache
def _print_once(line: str) -> None:
    """Print a line once per process: a command may arrange several networks on one device."""
    rank_zero_info(line)


def choose_convolution(
    device: torch.device, settings: ConvolutionSettings, precision: str = "32-true"
) -> tuple[Literal["gemm", "native"], MemoryFormat]:
    """Return the convolution implementation and the memory format of `backend: auto` on a device, and log them.

    On a CPU these are PyTorch's convolutions in channels_last, without a test. On other devices, native convolutions
    are tested on layers of `settings` in the `precision` of the Trainer. A memory format other than `auto` is kept.
    """
    if device.type == "cpu":
        memory_format: MemoryFormat = "channels_last" if settings.memory_format == "auto" else settings.memory_format
        _print_once(f"model.convolution.backend auto: native, {memory_format}, on a CPU")
        return "native", memory_format
    timeout_s = settings.probe_timeout_s
    _print_once(
        f"model.convolution.backend auto: testing native convolutions on {device}, at most {timeout_s:g} s without "
        "progress"
    )
    result = probe_native(device, timeout_s, _verdicts(), settings=trial_settings(settings, precision))
    convolution: Literal["gemm", "native"] = "native" if result.works else "gemm"
    _print_once(f"model.convolution.backend auto: {convolution}; {result}")
    return convolution, settings.memory_format


def _verdicts() -> Path:
    return cache_folder() / CONVOLUTION_VERDICTS


def convolution_facts(backend: Convolution, device: torch.device) -> dict[str, str]:
    """Return the implementation in use, and where a failure of native ones is stored, for `environment.json`."""
    facts = {"convolutions": str(backend)}
    if device.type != "cpu":
        facts |= {"native verdict key": device_key(device), "native verdict file": str(_verdicts())}
    return facts


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
