"""Resources of the GPU kernels on gfx1010, read from the output of clang."""

import pytest

from scripts import kernel_report
from scripts.kernel_report import LEAST_WAVES, CompiledKernel
from yolo_lightning.conv.kernels import build, fused_launch

CLANG = kernel_report.find_clang()
needs_clang = pytest.mark.skipif(CLANG is None, reason="there is no clang")

ASSEMBLY = """
\t.globl\tfirst
first:
.LBB0_1:
\tv_fma_f32 v0, v1, v2, v3
\tds_read_b128 v[0:3], v4
\ts_waitcnt lgkmcnt(0)
.LBB0_2:
\tv_add_nc_u32_e32 v0, 1, v0
\ts_cbranch_scc1 .LBB0_2
\ts_cbranch_vccnz .LBB0_1
.Lfunc_end0:
; NumVgprs: 126
; ScratchSize: 16
; LDSByteSize: 18688 bytes/workgroup (compile time only)
; Occupancy: 8
"""


def test_integer_multiply_adds_and_cold_blocks_do_not_count() -> None:
    cold = "\ts_endpgm\n.LBB0_3:\n\tv_add_f32 v0, v1, v2\n\tv_fma_f32 v0, v1, v2, v3\n\ts_branch .LBB0_2\n.Lfunc_end0:"
    loop = "\tv_mad_u32_u24 v0, v1, v2, v3\n\tv_fma_mix_f32 v0, v1, v2, v3\n\ts_cbranch_execnz .LBB0_3\n.LBB0_2:"
    text = ASSEMBLY.replace(".Lfunc_end0:", cold).replace(".LBB0_2:", loop, 1)
    (kernel,) = kernel_report.parse_amd(text, "gfx1010")
    assert (kernel.loop["multiply-add"], kernel.loop["vector"]) == (2, 2)


def test_a_loop_that_is_entered_in_the_middle_is_counted_completely() -> None:
    text = ASSEMBLY.replace("first:\n", "first:\n\ts_branch .LBB0_2\n")
    (kernel,) = kernel_report.parse_amd(text, "gfx1010")
    assert (kernel.loop["multiply-add"], kernel.loop["vector"]) == (1, 1)


def test_waits_for_loads_of_an_iteration_are_counted_wherever_the_text_begins() -> None:
    load, wait, product = (
        "\tglobal_load_dwordx4 v[0:3], v4, s[0:1]",
        "\ts_waitcnt vmcnt(0)",
        "\tv_fma_f32 v0, v1, v2, v3",
    )
    iteration = [wait, "\tds_write_b128 v4, v[0:3]", load, product, wait, product, "\ts_barrier"]
    for start in range(len(iteration)):
        text = "\n".join([*iteration[start:], *iteration[:start]])
        loop = f"\t.globl\tfirst\nfirst:\n.LBB0_1:\n{text}\n\ts_cbranch_scc1 .LBB0_1\n.Lfunc_end0:"
        (kernel,) = kernel_report.parse_amd(loop + ASSEMBLY.partition(".Lfunc_end0:")[2], "gfx1010")
        assert kernel.load_waits == 1


def test_resources_are_read_from_the_assembly() -> None:
    (kernel,) = kernel_report.parse_amd(ASSEMBLY, "gfx1010")
    loop = {"multiply-add": 1, "shared memory": 1, "wait": 1, "vector": 1, "scalar": 2}
    assert kernel == CompiledKernel("first", "gfx1010", 126, 16, 18688, 8, kernel.loop)
    assert kernel.loop == loop
    assert "| `first` | 126 | 16 | 18688 | 8 | " in kernel_report.describe([kernel])


@pytest.mark.whole_run
@needs_clang
def test_other_vector_instructions_per_multiply_add() -> None:
    names = [
        f"{product}_{tile}_by_four{suffix}"
        for suffix in ("", "_half", "_bfloat16")
        for product in ("correlate", "sum_products")
        for tile in ("128x64", "64x64")
    ] + [name for name in fused_launch.instances() if "winograd" in name]
    for kernel in kernel_report.compile_amd(str(CLANG), "gfx1010", names):
        limit = 0.25 if kernel.name.endswith(("_half", "_bfloat16")) else 0.2
        assert kernel.loop["vector"] <= limit * kernel.loop["multiply-add"], kernel
        assert kernel.waves >= (8 if "winograd" in kernel.name else 11)


@pytest.mark.whole_run
@needs_clang
def test_float32_kernels_do_not_wait_for_loads_before_the_multiply_adds() -> None:
    names = [name for name in fused_launch.instances() if name.endswith(("by_four", "winograd"))]
    kernels = kernel_report.compile_amd(str(CLANG), "gfx1010", names)
    assert len(kernels) == len(fused_launch.CORRELATE_TILES) + len(fused_launch.SUM_TILES)
    for kernel in kernels:
        assert (kernel.load_waits, kernel.spilled_bytes) == (0, 0), kernel
        assert kernel.loop["global memory"] > 0
        assert kernel.waves >= 7


@needs_clang
@pytest.mark.slow
def test_no_kernel_spills_and_all_have_enough_waves() -> None:
    names = list(build.kernel_lines())
    kernels = kernel_report.compile_amd(str(CLANG), "gfx1010", names)
    assert [kernel.name for kernel in kernels] == names
    assert [kernel for kernel in kernels if kernel.spilled_bytes or kernel.waves < LEAST_WAVES] == []


@needs_clang
def test_errors_of_the_compiler_are_reported() -> None:
    with pytest.raises(RuntimeError, match="failed with exit code 1"):
        kernel_report.compile_amd(str(CLANG), "gfx0", ["correlate_256x32_by_one"])
