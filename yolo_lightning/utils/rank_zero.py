"""Messages of the first rank, without the seconds of importing Lightning; the functions are the same as Lightning's."""

import logging
import os
import sys
import warnings
from typing import Any, TextIO, cast

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn

from yolo_lightning.utils.distributed import line_prefix

__all__ = ["hide_harmless_lines", "rank_warn", "rank_zero_info", "rank_zero_warn"]

HARMLESS_WARNINGS = (
    "IProgress not found",  # tqdm's progress bar works without it
    'install "ipywidgets" for Jupyter support',  # rich's progress bar works without it
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning 2.6 with torch 2.13 and newer
    "Consider setting `persistent_workers=True`",  # evaluation workers end after each evaluation
    "Checkpoint directory .* exists and is not empty",  # normal for a resumed run
    "The '.*_dataloader' does not have many workers",  # the configuration sets the number, with reasons
    "The number of training batches .* is smaller than the logging interval",  # small datasets
    r"Found \d+ module\(s\) in eval mode at the start of training",  # normalization layers of frozen parts
    "You are using a custom batch sampler `FileOrderBatches`",  # it visits every frame
    r"It is recommended to use `self.log\('.*', ..., sync_dist=True\)`",  # each process scores all frames
    "Early stopping conditioned on metric",  # `MeanAP` says what to set
    "The AccumulateGrad node's stream does not match",  # recorded passes, whose gradients are equal bit for bit
    # Only a fit has these callbacks; no state of the training is in them.
    "Be aware that when using `ckpt_path`, .* Please add the following callbacks: "
    r"\[('(FitTimer|StatusFile)'(, )?)+\]",
)
"""Warnings of other libraries that a user cannot act on."""

USELESS_LINES = (
    "Tip:",  # Lightning recommends other packages
    "that has Tensor Cores",  # convolutions use TF32 by default, and `gemm` is exact on purpose
)
"""Parts of log lines of Lightning that a user cannot act on."""

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")

# Lightning does the same when it is imported, and its Trainer sets the rank.
rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), 0)
vars(rank_zero_only).setdefault("rank", int(rank))


def count_as_only_process() -> None:
    """Let this process, which computes alone, print and write as the first rank.

    Shells of clusters and containers define ranks for programs of several processes. With such a rank, Lightning
    omits loggers and lines without a word.
    """
    left_over = {name: os.environ[name] for name in RANK_VARIABLES if os.environ.get(name, "0") != "0"}
    for name in left_over:
        del os.environ[name]
    vars(rank_zero_only)["rank"] = 0
    if left_over:
        texts = " ".join(f"{name}={value}" for name, value in left_over.items())
        rank_zero_warn(f"{texts} in the environment has no effect: trainer.devices x trainer.num_nodes is 1")


def rank_warn(message: str) -> None:
    """Warn of something that concerns this rank or its host alone; also in ranks other than the first."""
    warnings.warn(message, stacklevel=3)


class RankLines:
    """Text stream of a rank other than the first: each line begins with rank and host, and is written at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._stream.write(f"{line_prefix(vars(rank_zero_only)['rank'])}{line}\n" if line else "\n")
        return len(text)

    def flush(self) -> None:
        if self._rest:
            self.write("\n")
        self._stream.flush()


def mark_lines() -> None:
    """Let the lines of this process begin with rank and host, unless it is the first rank."""
    if vars(rank_zero_only)["rank"]:
        sys.stdout = cast(TextIO, RankLines(sys.stdout))
        sys.stderr = cast(TextIO, RankLines(sys.stderr))


def is_useful(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    return not any(part in message for part in USELESS_LINES)


def hide_harmless_lines() -> None:
    """Hide warnings and log lines of other libraries that a user cannot act on.

    In a notebook, log lines are printed to stdout, because a notebook shows stderr in red.
    """
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(is_useful)
    kernel = sys.modules.get("ipykernel.kernelapp")
    if kernel is not None and kernel.IPKernelApp.initialized():  # False where a program merely imports ipykernel
        for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                if type(handler) is logging.StreamHandler:
                    handler.setStream(sys.stdout)
