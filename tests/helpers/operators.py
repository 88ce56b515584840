"""Names of the operators in a profiler trace."""

from typing import Any

VENDOR_OPERATORS = (
    "convolution",
    "conv2d",
    "aten::conv",
    "aten::slow_conv",
    "cudnn",
    "miopen",
    "mkldnn_convolution",
    "aten::batch_norm",
)


def operators(trace: Any) -> set[str]:
    """The names in a trace, without its averages, whose computation takes longer than the rest of a test."""
    return {event.name() for event in trace.profiler.kineto_results.events()}


def vendor_operators(trace: Any) -> set[str]:
    return {name for name in operators(trace) if any(part in name for part in VENDOR_OPERATORS)}
