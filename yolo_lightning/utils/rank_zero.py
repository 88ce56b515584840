"""Messages of the first rank, without the seconds of importing Lightning; the functions are the same as Lightning's."""

import os

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn

__all__ = ["rank_zero_info", "rank_zero_warn"]

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")

if not hasattr(rank_zero_only, "rank"):  # Lightning does the same when it is imported, and its Trainer sets the rank
    rank_zero_only.rank = next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)
