"""Names and tile sizes of the kernels in fused.cu, and the interface that launches them."""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

Grid = tuple[int, int, int]

THREADS = 256
"""Threads of a block; equal to THREADS in fused.cu."""
DEPTH = 16
"""Terms of each sum in shared memory at once; equal to DEPTH in fused.cu."""


class Launcher(Protocol):
    """Launches a kernel of `instances` on the current stream of the device of the tensors."""

    def __call__(self, name: str, grid: Grid, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Launch `grid` blocks; the arguments are the addresses of the tensors, followed by the numbers.

        Raises:
            RuntimeError: If the kernel cannot be compiled or launched.
        """


class KernelTile(NamedTuple):
    """Part of a result that one block computes; each thread computes `rows_each` x 4 elements."""

    rows: int
    columns: int
    rows_each: int

    def kernel(self, product: str, by_four: bool) -> str:
        """Return the name of the kernel for `correlate` or `sum_products`; `by_four` selects aligned float4 loads."""
        return f"{product}_{self.rows}x{self.columns}_{'by_four' if by_four else 'by_one'}"

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of tiles along the rows and columns of a result."""
        return -(-rows // self.rows), -(-columns // self.columns)

    def cost(self, rows: int, columns: int, least_blocks: int) -> float:
        """Return the relative number of reads from shared memory, for at least `least_blocks` blocks."""
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
    """Return the C++ line that defines each kernel, by kernel name."""
    return {
        tile.kernel(product, by_four): f"{product.upper()}({tile.kernel(product, by_four)}, {tile.rows}, "
        f"{tile.columns}, {tile.rows_each}, {str(by_four).lower()})"
        for product in ("correlate", "sum_products")
        for tile in TILES
        for by_four in (True, False)
    }
