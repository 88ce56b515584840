"""Frame names as one sorted array, which can be mapped from a file and searched in place."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NamesArray = npt.NDArray[np.bytes_]


class NameTable:
    """Position of each name in an array of sorted, unique UTF-8 bytes, which may be mapped from a file."""

    def __init__(self, names: NamesArray) -> None:
        self.names = np.asarray(names)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, name: str) -> int | None:
        """Return the position of `name` in the array, or None if it is absent."""
        key = encode(name)
        names: Sequence[Any] = self.names  # type: ignore[assignment]
        position = bisect_left(names, key)
        return position if position < len(names) and bytes(names[position]) == key else None

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return the elements of `names` that are not in the array, in their order."""
        wanted = list(names)
        if not wanted or not len(self):
            return wanted
        keys = [encode(name) for name in wanted]
        array = np.array(keys, dtype=self.names.dtype)  # truncates longer names, which the lengths reveal
        positions = np.searchsorted(self.names, array).clip(max=len(self) - 1)
        lengths = np.array([len(key) for key in keys])
        present = (self.names[positions] == array) & (np.char.str_len(array) == lengths)
        return [wanted[position] for position in np.flatnonzero(~present)]


def encode(name: str) -> bytes:
    """Encode as UTF-8; text that is not valid UTF-8 matches no file name instead of raising an error."""
    return name.encode("utf-8", errors="surrogatepass")
