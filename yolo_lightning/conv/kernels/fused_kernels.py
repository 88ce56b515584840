"""The kernels that fused.cu makes, one for each tile size, and what starts them."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

Grid = tuple[int, int, int]

THREADS = 256
"""As in fused.cu: threads of a block."""
DEPTH = 16
"""As in fused.cu: summands in shared memory at once."""


class Launcher(Protocol):
    """Runs a kernel of `instances` on the current stream of the tensors' device."""

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Start `grid` blocks of the kernel with the addresses of the tensors, then the numbers, as arguments.

        Raises:
            RuntimeError: If the kernel cannot be made or started.
        """


class KernelTile(NamedTuple):
    """The piece of a result that a block of threads computes; a thread computes `rows_each` x 4 numbers of it."""

    rows: int
    columns: int
    rows_each: int

    def kernel(self, product: str, by_four: bool) -> str:
        """The name of the kernel for `correlate` or `sum_products`; `by_four`: reads aligned groups of four numbers."""
        return f"{product}_{self.rows}x{self.columns}_{'by_four' if by_four else 'by_one'}"

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """How many tiles cover a result, along its rows and columns."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def cost(self, rows: int, columns: int, least_blocks: int) -> float:
        """Relative time for a result: reads from shared memory, on a device that `least_blocks` keep busy."""
        blocks = max(math.prod(self.blocks(rows, columns)), least_blocks)
        return blocks * self.rows * self.columns * (1 / self.rows_each + 1 / 4)


TILES = (
    KernelTile(128, 64, 8),
    KernelTile(256, 32, 8),
    KernelTile(64, 64, 4),
    KernelTile(128, 32, 4),
    KernelTile(256, 16, 4),
)


def instances() -> dict[str, str]:
    """The line of C++ that makes each kernel, by its name."""
    return {
        tile.kernel(product, by_four): f"{product.upper()}({tile.kernel(product, by_four)}, {tile.rows}, "
        f"{tile.columns}, {tile.rows_each}, {str(by_four).lower()})"
        for product in ("correlate", "sum_products")
        for tile in TILES
        for by_four in (True, False)
    }
