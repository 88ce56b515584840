"""Source text of the GPU kernels, and its compilation as far as it can be tested without a GPU."""

import re
from pathlib import Path

import pytest
import torch

from yolo_lightning.conv.kernels import build, fused_launch, launcher
from yolo_lightning.conv.kernels.verified import BuildError


def test_constants_equal_those_of_the_source() -> None:
    text = build.source(list(build.kernel_lines()))
    assert f"constexpr int THREADS = {launcher.THREADS};" in text
    assert f"constexpr int DEPTH = {fused_launch.DEPTH};" in text
    assert "ROWS = 32, COLUMNS = 32;" in text
    assert "constexpr int DEPTH_EACH = THREADS / ROWS;" in text
    assert fused_launch.WINOGRAD_DEPTH == launcher.THREADS // 32


def test_kernels_use_no_vendor_specific_feature() -> None:
    code = re.sub(r"//.*", "", build.source(list(build.kernel_lines())))
    amd = re.compile(r"#if(?:def| defined\()\W*__AMDGCN__.*?#else", re.DOTALL)
    assert len(amd.findall(code)) == 3  # float16, the barrier, and a hint for the compiler
    code = amd.sub("", code)
    for word in ("warp", "shfl", "ballot", "asm", "wmma", "double", "#include", "__ldg", "__half"):
        assert word not in code
    # Sums by atomic operations would depend on the order of the blocks.
    assert re.findall(r"atomic\w+\([^)]*\)", code) == ["atomicAdd(counter, 1u)"]


def test_a_missing_library_is_a_build_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_compiler(*arguments: object) -> None:
        raise AttributeError("undefined symbol: nvrtcGetCUBIN")

    monkeypatch.setattr(build, "RuntimeCompiled", no_compiler)
    with pytest.raises(BuildError, match="AttributeError: undefined symbol: nvrtcGetCUBIN"):
        build.make_launcher(torch.device("cuda", 0), tmp_path)
