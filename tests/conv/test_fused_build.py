"""Compilation of fused.cu for a GPU, as far as it can be tested without a GPU."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from yolo_lightning.conv.kernels import build, fused_launch, launcher
from yolo_lightning.conv.kernels.verified import BuildError

DEVICE = torch.device("cuda", 0)
NVCC = shutil.which("nvcc")
HOLD = "import sys; from pathlib import Path; from yolo_lightning.conv.kernels.build import file_lock\n" + (
    "with file_lock(Path(sys.argv[1]), 0.0):\n    print('held', flush=True)\n    sys.stdin.read()"
)


@pytest.fixture
def architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report the properties of a GPU."""
    properties = SimpleNamespace(major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the build lock."""
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "building"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.communicate()


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


def test_a_kernel_is_compiled_with_the_files_that_it_needs() -> None:
    convolution, norm = (build.source([name]) for name in ("correlate_64x64_by_four", "batch_statistics_nhwc_by_four"))
    assert "void correlate(" in convolution
    assert "Moments" not in convolution
    assert "Moments" in norm
    assert "void correlate(" not in norm


def test_error_lists_the_reasons_of_both_compilers(
    monkeypatch: pytest.MonkeyPatch, architecture: None, tmp_path: Path
) -> None:
    def no_compiler(*arguments: object) -> None:
        raise BuildError("no library nvrtc")

    def no_library(*arguments: object) -> Path:
        raise RuntimeError("Ninja is required")

    monkeypatch.setattr(build, "RuntimeCompiled", no_compiler)
    monkeypatch.setattr(build, "build_library", no_library)
    with pytest.raises(BuildError, match=r"no library nvrtc; toolkit: RuntimeError: Ninja"):
        build.make_launcher(DEVICE, tmp_path)


def test_a_build_holds_a_lock_and_removes_a_stale_one(
    monkeypatch: pytest.MonkeyPatch, architecture: None, tmp_path: Path
) -> None:
    from torch.utils import cpp_extension

    folders: list[Path] = []

    def load(name: str, sources: Sequence[str], build_directory: str, **_: object) -> None:
        folder = Path(build_directory)
        assert not (folder / "lock").exists()
        with pytest.raises(BuildError), build.file_lock(folder / "building", 0.0):
            pass
        assert Path(sources[0]).read_text(encoding="utf-8") == build.library_source()
        (folder / "lock").touch()
        folders.append(folder)

    monkeypatch.setattr(cpp_extension, "load", load)
    libraries = [build.build_library(DEVICE, tmp_path) for _ in range(2)]
    assert len(set(folders)) == 1
    assert libraries == [folder / f"{folder.name}.so" for folder in folders]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
@pytest.mark.slow
def test_only_one_process_builds_and_a_killed_one_releases_the_lock(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(BuildError, match="another process has held"), build.file_lock(tmp_path / "building", 0.3):
        pass
    holder.kill()
    holder.wait()
    with build.file_lock(tmp_path / "building", 5.0):
        pass


@pytest.mark.slow
def test_hipify_replaces_every_cuda_name(tmp_path: Path) -> None:
    from torch.utils.hipify.hipify_python import hipify

    file = tmp_path / "kernels.cu"
    file.write_text(build.library_source())
    results = hipify(str(tmp_path), output_directory=str(tmp_path), extra_files=[str(file)], is_pytorch_extension=True)
    text = Path(str(results[str(file)].hipified_path)).read_text()
    assert "hipLaunchKernel" in text
    assert re.findall(r"cuda\w*", re.sub(r"//.*", "", text), re.IGNORECASE) == []


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.parametrize("architecture_name", ["sm_75", "sm_90"])
@pytest.mark.slow
def test_nvcc_compiles_without_spilling(architecture_name: str, tmp_path: Path) -> None:
    file = tmp_path / "kernels.cu"
    file.write_text(build.library_source())
    flags = ["-c", f"-arch={architecture_name}", "-Xptxas", "-v", "-Werror", "all-warnings"]
    made = subprocess.run([str(NVCC), *flags, file, "-o", tmp_path / "kernels.o"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    spilled = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", made.stderr)
    assert spilled == [("0", "0")] * len(build.kernel_lines())


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils import cpp_extension

    homes = [home for home in (cpp_extension.CUDA_HOME, "/usr/local/cuda") if home]
    whole = [home for home in homes if (Path(home) / "lib64" / "libcudart.so").exists()]
    if not whole or not torch.version.cuda or shutil.which("ninja") is None:
        pytest.skip("needs a CUDA toolkit, ninja and a torch for CUDA")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", whole[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there, so the launch would succeed")
@pytest.mark.slow
def test_launch_of_a_built_library_reports_errors(architecture: None, toolkit: None, tmp_path: Path) -> None:
    library = build.build_library(DEVICE, tmp_path)
    assert build.build_library(DEVICE, tmp_path) == library
    launch = launcher.LibraryLauncher(library)
    name = next(iter(build.kernel_lines()))
    with pytest.raises(RuntimeError, match=f"cannot launch kernel {name}: .*(device|driver)"):
        launch(name, (1, 1, 1), launcher.Operands((torch.zeros(3),) * 3, ()), [0] * 22)
    with pytest.raises(RuntimeError, match="no such kernel"):
        launch("other", (1, 1, 1), launcher.Operands((torch.zeros(3),), ()), [])
