"""Messages of the first rank, without the seconds of importing Lightning; the functions are the same as Lightning's."""

import logging
import os
import sys

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn

__all__ = ["print_to_notebook", "rank_zero_info", "rank_zero_warn"]

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")

# Lightning does the same when it is imported, and its Trainer sets the rank.
vars(rank_zero_only).setdefault("rank", next((int(os.environ[one]) for one in RANK_VARIABLES if one in os.environ), 0))


def print_to_notebook() -> None:
    """In a notebook, print Lightning's log lines to stdout, because a notebook shows stderr in red."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    if kernel is not None and kernel.IPKernelApp.initialized():  # False where a program merely imports ipykernel
        for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                if type(handler) is logging.StreamHandler:
                    handler.setStream(sys.stdout)
