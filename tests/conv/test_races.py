"""Each barrier, fence, reset of a counter and last-block condition of the GPU kernels is needed, and its loss detected.

Every test with the fixture `emulated` checks for races and for accesses outside of the operands (race_check.cpp).
"""

import ctypes
import re

import pytest
import torch

from tests.conv.emulation import COMPILER, Guarded, compile_emulated
from tests.conv.test_fused import compare, make_products, only_tile
from tests.conv.test_fused_norm import LAYOUTS, check
from yolo_lightning.conv.kernels import batch_norm_launch, build, fused_launch

pytestmark = pytest.mark.whole_run
STATEMENTS = r"sync_shared\(\);|__syncthreads\(\);|__threadfence\(\);|if \(arrived == blocks\) \*counter = 0;"
CONDITIONS = r"if \((arrived != blocks|!is_last_block\([^;]*?\))\) return( false)?;"
NAMES = [
    *(
        "correlate_winograd",
        "sum_products_winograd",
        "correlate_64x64_by_four",
        "correlate_64x64_by_one",
        "sum_products_32x32_by_four",
        "sum_products_32x32_by_one",
        "sum_products_64x64_by_four",
        "sum_products_64x64_by_one",
    ),
    *(
        f"{kernel}_{kind}"
        for kind in ("nhwc_by_four", "nchw_by_one")
        for kernel in ("batch_statistics", "normalize_silu", "silu_gradient_sums", "normalize_silu_gradient")
    ),
]


def mutated(text: str) -> tuple[str, list[str]]:
    """Return the source text with a switch at each statement that `mutation` removes, and the statements."""
    removed: list[str] = []

    def switch(match: re.Match[str]) -> str:
        before = re.findall(r"inline \w+ (\w+)\(|__device__ bool (\w+)\(", text[: match.start()])[-1]
        removed.append(f"{before[0] or before[1]}: `{' '.join(match[0].split())}`")
        return f"if (!race::is_removed({len(removed)})) {{ {match[0]} }}"

    changed_text = re.sub(rf"(?m)^ +(?:{STATEMENTS}|{CONDITIONS})", switch, text)
    return changed_text, removed


@pytest.fixture(scope="module")
def mutable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Guarded, ctypes.c_uint, list[str]]:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    text, removed = mutated(build.source(NAMES))
    library = compile_emulated(tmp_path_factory.mktemp("mutable"), text, NAMES)
    return Guarded(library), ctypes.c_uint.in_dll(ctypes.CDLL(str(library)), "removed_statement"), removed


def run_all(launch: Guarded) -> None:
    """Run all kernels on partial tiles, with two levels of splits and several blocks."""
    for channels in (8, 5):
        # The second launch of each kernel uses the counters that the first one has left.
        for stride in (1, 2):
            compare(launch, make_products((1, channels, 14, 9), (12, channels, 3, 3), {"padding": 1, "stride": stride}))
    input, weight, grads, problem, expected = make_products((1, 16, 14, 9), (12, 16, 3, 3), {"padding": 1})
    output = fused_launch.forward(launch, input, weight, problem, (fused_launch.WINOGRAD,))
    grad_weight = fused_launch.weight_gradient(launch, input, grads, problem, (fused_launch.WINOGRAD_SUMS,))
    torch.testing.assert_close(output.double(), expected[0], rtol=0, atol=1e-4)
    tile = next(tile for tile in fused_launch.SUM_TILES if tile.rows == 32)
    for gradient in (grad_weight, fused_launch.weight_gradient(launch, input, grads, problem, (tile,))):
        torch.testing.assert_close(gradient.double(), expected[2], rtol=0, atol=1e-4)
    for layout, shape in (("NHWC", (2, 12, 14, 14)), ("NCHW", (2, 5, 13, 11))):
        for _ in range(2):
            check(launch, shape, LAYOUTS[layout], torch.float32)


def test_the_loss_of_each_statement_is_noticed(
    mutable: tuple[Guarded, ctypes.c_uint, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, mutation, removed = mutable
    only_tile(monkeypatch, fused_launch.KernelTile(64, 64, 4))
    monkeypatch.setattr(fused_launch, "PIXELS_PER_SPLIT", 16)
    monkeypatch.setattr(fused_launch, "SPLITS_PER_GROUP", 2)
    monkeypatch.setattr(batch_norm_launch, "LEAST_ACCESSES", 1)
    run_all(launch)
    outcomes = {}
    for number, statement in enumerate(removed, 1):
        mutation.value = number
        try:
            run_all(launch)
            outcomes[number, statement] = "nothing"
        except (RuntimeError, AssertionError) as error:
            outcomes[number, statement] = str(error).splitlines()[0]
        mutation.value = 0
        batch_norm_launch.counters(torch.empty(1), 1).zero_()
    assert "nothing" not in outcomes.values()
    assert len(outcomes) == 26, "docs/kernels.md lists the statements"
