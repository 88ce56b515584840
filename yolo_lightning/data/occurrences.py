"""Rank of each element of an array among its equals."""

import numpy as np

from yolo_lightning.data.array_types import Int64Array, IntegerArray


def occurrences(values: IntegerArray) -> Int64Array:
    """Return, for each position of `values` `(N,)`, how many earlier positions have the same value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return ranks
