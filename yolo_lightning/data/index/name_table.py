"""Frame names as one sorted array, so that a million of them are mapped from a file and searched in place."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NamesArray = npt.NDArray[np.bytes_]


class NameTable:
    """Finds the position of a name.

    Args:
        names: `(N,)` UTF-8 bytes, sorted, each once; may be mapped from a file.
    """

    def __init__(self, names: NamesArray) -> None:
        self.names = np.asarray(names)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int | None:
        """Position of `name` in the array, None if it is not there."""
        key = encode(name)
        names: Sequence[Any] = self.names  # type: ignore[assignment]
        position = bisect_left(names, key)
        return position if position < len(names) and bytes(names[position]) == key else None

    def absent(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are not in the array, in their order."""
        wanted = list(names)
        if not wanted or not len(self):
            return wanted
        keys = [encode(name) for name in wanted]
        array = np.array(keys, dtype=self.names.dtype)  # cuts longer names off, which the lengths show
        positions = np.searchsorted(self.names, array).clip(max=len(self) - 1)
        lengths = np.fromiter((len(key) for key in keys), dtype=np.int64, count=len(keys))
        present = (self.names[positions] == array) & (np.char.str_len(array) == lengths)
        return [wanted[position] for position in np.flatnonzero(~present)]


def encode(name: str) -> bytes:
    """UTF-8, also for text that no file name can hold, which is then simply not found."""
    return name.encode("utf-8", errors="surrogatepass")
