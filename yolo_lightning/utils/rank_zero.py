"""Messages of the first rank, without the seconds of importing Lightning; the functions are the same as Lightning's."""

import os

from lightning_utilities.core.rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn

__all__ = ["rank_zero_info", "rank_zero_warn"]

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")

# Lightning does the same when it is imported, and its Trainer sets the rank.
vars(rank_zero_only).setdefault("rank", next((int(os.environ[one]) for one in RANK_VARIABLES if one in os.environ), 0))
