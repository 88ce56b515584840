"""Registers, spills, shared memory, occupancy and inner loops of the GPU kernels, from compilers alone, without a GPU.

`python -m scripts.kernel_report` compiles every kernel and prints a Markdown table for each architecture. AMD
architectures need clang (Debian: `apt-get install clang-19 llvm-19 lld-19`), NVIDIA's need nvcc or NVRTC with ptxas.
Architectures without a compiler are left out, with a line that says so.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yolo_lightning.conv.kernels import build
from yolo_lightning.conv.kernels.launcher import THREADS

AMD = ("gfx1010", "gfx1030", "gfx1100")
NVIDIA = ("sm_75", "sm_90")
LEAST_WAVES = 8
"""Waves per SIMD that a kernel needs on gfx1010, to hide the latency of memory."""
# Threads and registers of a multiprocessor of both NVIDIA architectures, and its shared memory in bytes.
NVIDIA_LIMITS = {"sm_75": (1024, 1 << 16, 64 << 10), "sm_90": (2048, 1 << 16, 227 << 10)}
WARP = 32

# Keywords and functions of HIP that the kernels use; without AMD's headers.
PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))
struct ThreadIndex {
    struct X { __device__ operator unsigned() const { return __builtin_amdgcn_workitem_id_x(); } } x;
};
struct BlockIndex {
    struct X { __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); } } x;
    struct Y { __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_y(); } } y;
    struct Z { __device__ operator unsigned() const { return __builtin_amdgcn_workgroup_id_z(); } } z;
};
extern const __device__ ThreadIndex threadIdx;
extern const __device__ BlockIndex blockIdx;
struct alignas(16) float4 { float x, y, z, w; };
__device__ inline void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
__device__ inline unsigned atomicAdd(unsigned* counter, unsigned number) {
    return __hip_atomic_fetch_add(counter, number, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ inline float expf(float value) { return __builtin_expf(value); }
__device__ inline float sqrtf(float value) { return __builtin_sqrtf(value); }
"""

KINDS = {
    "multiply-add": r"v_(pk_)?(fma|fmac|mac|mad|dual_fmac)_(mix(lo|hi)?_)?f",  # not those of integers, for addresses
    "shared memory": r"ds_",
    "global memory": r"(global|buffer|flat)_",
    "wait": r"s_waitcnt|s_barrier|s_nop|s_delay",
    "scalar": r"s_",
    "vector": r"v_",
}


BRANCH = re.compile(r"\ts_c?branch\w*\s+(\.LBB\w+)")


@dataclass(frozen=True)
class CompiledKernel:
    """Resources of one kernel on one architecture."""

    name: str
    architecture: str
    registers: int  # per thread
    spilled_bytes: int  # per thread
    shared_bytes: int  # per block
    waves: int  # resident waves per SIMD (AMD) or warps per multiprocessor (NVIDIA)
    loop: Counter[str]  # instructions of the inner loop, by kind; empty if not known
    load_waits: int = 0  # waits for loads, between the loads of the inner loop and the barrier after its multiply-adds


def find_clang() -> str | None:
    """Return the path of a clang that compiles for AMD GPUs, or None."""
    return next((path for name in ("clang-19", "clang-20", "clang-18", "clang") if (path := shutil.which(name))), None)


def compile_amd(clang: str, architecture: str, kernels: Sequence[str]) -> list[CompiledKernel]:
    """Return the resources that clang reports for the kernels. Raises `RuntimeError` with its messages on failure."""
    with tempfile.TemporaryDirectory() as folder:
        file, assembly = Path(folder) / "kernels.hip", Path(folder) / "kernels.s"
        file.write_text(PRELUDE + build.source(kernels), encoding="utf-8")
        flags = ["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3", "-S"]
        _run([clang, *flags, f"--offload-arch={architecture}", str(file), "-o", str(assembly)])
        compiled = {kernel.name: kernel for kernel in parse_amd(assembly.read_text(encoding="utf-8"), architecture)}
    return [compiled[name] for name in kernels]


def parse_amd(assembly: str, architecture: str) -> list[CompiledKernel]:
    """Return the resources of all kernels in an assembly text of clang."""
    kernels = []
    for part in re.split(r"(?m)^\t\.globl\t", assembly)[1:]:
        numbers = dict(re.findall(r"; (NumVgprs|ScratchSize|LDSByteSize|Occupancy): (\d+)", part))
        if "Occupancy" not in numbers:
            continue
        registers, spilled, shared, waves = (
            int(numbers[name]) for name in ("NumVgprs", "ScratchSize", "LDSByteSize", "Occupancy")
        )
        name = part.split(None, 1)[0]
        loop = _inner_loop(part)
        resources = (name, architecture, registers, spilled, shared, waves)
        kernels.append(CompiledKernel(*resources, _kinds(loop), _load_waits(loop)))
    return kernels


def _inner_loop(text: str) -> list[str]:
    """Return the lines of the smallest loop with the most multiply-adds.

    A loop ends where control jumps to a block that dominates the jump. clang moves rarely executed blocks of a loop
    behind its last jump to the first block; these blocks do not count.
    """
    lines = text.partition(".Lfunc_end")[0].splitlines()
    starts = [0, *(n for n, line in enumerate(lines) if n and (line.startswith(".LBB") or BRANCH.match(lines[n - 1])))]
    labels = {lines[at].split(":")[0]: block for block, at in enumerate(starts)}
    bodies = [lines[at:end] for at, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    following: list[set[int]] = []
    for block, body in enumerate(bodies):
        jump = BRANCH.match(body[-1]) if body else None
        leaves = any(re.match(r"\t(s_endpgm|s_branch)", line) for line in body[-1:])
        following.append(({labels[jump[1]]} if jump else set()) | (set() if leaves else {block + 1} - {len(bodies)}))
    preceding = [
        {predecessor for predecessor, successors in enumerate(following) if block in successors}
        for block in range(len(bodies))
    ]
    loops: list[list[str]] = []
    for head in range(len(bodies)):
        beyond = _reached(following, 0, without=head)
        ends = [block for block, successors in enumerate(following) if head in successors and block not in beyond]
        inside = {head}.union(*(_reached(preceding, end, without=head) for end in ends))
        if ends:
            jumps = [block for block in inside if min(inside) in following[block] and block >= max(head, min(inside))]
            hot = [block for block in sorted(inside) if block <= max(jumps, default=max(inside))]
            loops.append([line for block in hot for line in bodies[block]])
    return max(loops, key=lambda loop: (_kinds(loop)["multiply-add"], -_kinds(loop).total()), default=[])


def _load_waits(loop: Sequence[str]) -> int:
    """Return the number of waits for loads from the first load of an iteration to the barrier after its products."""
    # The text of a loop can begin in the middle of an iteration, which begins after the writes to shared memory.
    start = max((number + 1 for number, line in enumerate(loop) if line.startswith("\tds_write")), default=0)
    order = [*loop[start:], *loop[:start]]
    loads = [number for number, line in enumerate(order) if re.match(r"\t(global|buffer|flat)_load", line)]
    after = order[loads[0] :] if loads else []
    end = next((number for number, line in enumerate(after) if line.startswith("\ts_barrier")), 0)
    return sum(bool(re.match(r"\ts_waitcnt\b.*vmcnt", line)) for line in after[:end])


def _reached(following: Sequence[set[int]], start: int, without: int) -> set[int]:
    """Return the blocks that are reached from a block without passing another one."""
    reached = set()
    waiting = [start]
    while waiting:
        if (block := waiting.pop()) != without and block not in reached:
            reached.add(block)
            waiting.extend(following[block])
    return reached


def _kinds(lines: Sequence[str]) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for line in lines:
        instruction = re.match(r"\t([a-z]\w+)", line)
        if instruction:
            kinds[next((kind for kind, words in KINDS.items() if re.match(words, instruction[1])), "other")] += 1
    return kinds


def _compile_nvidia(nvcc: str, architecture: str, kernels: Sequence[str]) -> list[CompiledKernel]:
    """Return the resources that ptxas reports for the kernels. Raises `RuntimeError` with its messages on failure."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(build.source(kernels), encoding="utf-8")
        messages = _run([nvcc, "-cubin", f"-arch={architecture}", "-Xptxas", "-v", str(file), "-o", f"{file}bin"])
    compiled = {}
    for part in re.split(r"Compiling entry function '", messages)[1:]:
        name = part.partition("'")[0]
        registers = _number(r"Used (\d+) registers", part)
        spilled, shared = _number(r"(\d+) bytes spill stores", part), _number(r"(\d+) bytes smem", part)
        threads, all_registers, all_shared = NVIDIA_LIMITS[architecture]
        # Registers are allocated to a warp in units of 256.
        per_block = -(-registers * WARP // 256) * 256 * THREADS // WARP
        blocks = min(threads // THREADS, all_registers // per_block, all_shared // shared if shared else threads)
        waves = blocks * THREADS // WARP
        compiled[name] = CompiledKernel(name, architecture, registers, spilled, shared, waves, Counter())
    return [compiled[name] for name in kernels]


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _run(words: Sequence[str]) -> str:
    completed = subprocess.run(words, capture_output=True, text=True)
    if completed.returncode != 0:
        raise RuntimeError(f"{words[0]} failed with exit code {completed.returncode}: {completed.stderr[-2000:]}")
    return completed.stdout + completed.stderr


def describe(kernels: Sequence[CompiledKernel]) -> str:
    """Return a Markdown table of kernels on one architecture."""
    unit = _unit(kernels[0].architecture)
    lines = [
        f"| kernel | registers | spilled bytes | shared bytes | {unit} | inner loop |",
        "|---|---|---|---|---|---|",
    ]
    for kernel in kernels:
        loop = ", ".join(f"{count} {kind}" for kind, count in kernel.loop.most_common()) or "-"
        numbers = (kernel.registers, kernel.spilled_bytes, kernel.shared_bytes, kernel.waves)
        lines.append(f"| `{kernel.name}` | {' | '.join(map(str, numbers))} | {loop} |")
    return "\n".join(lines)


def _unit(architecture: str) -> str:
    return "waves per SIMD" if architecture in AMD else "warps per multiprocessor"


def main() -> None:
    """Compile all kernels and print their tables."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    names = list(build.kernel_lines())
    clang, nvcc = find_clang(), shutil.which("nvcc")
    for architecture in (*AMD, *NVIDIA):
        compiler = clang if architecture in AMD else nvcc
        print(f"## {architecture}\n")
        if compiler is None:
            print(f"No compiler for {architecture} was found.\n")
            continue
        compile_for = compile_amd if architecture in AMD else _compile_nvidia
        print(describe(compile_for(compiler, architecture, names)) + "\n")


if __name__ == "__main__":
    main()
