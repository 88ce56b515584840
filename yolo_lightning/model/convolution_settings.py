"""Settings of the convolutions of a graph."""

from typing import Literal

from yolo_lightning.utils.choices import settings_group

Convolution = Literal["auto", "gemm", "native"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
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
        cuda_graph: Record forward and backward pass as CUDA graphs and replay them, which saves the time of single
            kernel launches with small batches; needs one NVIDIA or AMD GPU and native convolutions.
        activation_checkpointing: Store fewer activations for the backward pass and recompute the others: less memory,
            more time.
        probe_timeout_s: Seconds without progress after which the test of `backend: auto` counts as hung, > 0.
        autotune_budget_s: Time limit in seconds for the measurements of `autotune`, per process, >= 0.
    """

    backend: Convolution = "auto"
    algorithm: ConvAlgorithm = "auto"
    memory_format: MemoryFormat = "auto"
    cuda_graph: bool = False
    activation_checkpointing: bool = False
    probe_timeout_s: float = 60.0
    autotune_budget_s: float = 60.0
