"""Compilation by NVRTC or HIPRTC and launches through the driver, with a library that stands in for both."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from yolo_lightning.conv.kernels import build, runtime_compiler
from yolo_lightning.conv.kernels.launcher import Operands
from yolo_lightning.conv.kernels.runtime_compiler import AMD, NVIDIA, GpuFunctions, RuntimeCompiled, RuntimeCompiler
from yolo_lightning.conv.kernels.verified import BuildError

C_COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(C_COMPILER is None, reason="there is no C compiler")
DEVICE = torch.device("cuda", 0)
Make = Callable[[], RuntimeCompiled]


def source(kernels: Sequence[str]) -> str:
    return f"kernel {' '.join(kernels)}"


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("gpu") / "libfakegpu.so"
    words = [str(C_COMPILER), "-shared", "-fPIC", "-w", str(Path(__file__).with_name("fake_gpu.c")), "-o", str(library)]
    subprocess.run(words, check=True, capture_output=True)
    return library


@pytest.fixture
def gpu(fake_library: Path, tmp_path: Path) -> ctypes.CDLL:
    """A new copy of the library, whose state is not shared with other tests."""
    return ctypes.CDLL(shutil.copy(fake_library, tmp_path / "libgpu.so"))


@pytest.fixture(params=[NVIDIA, AMD], ids=["NVIDIA", "AMD"])
def functions(request: pytest.FixtureRequest) -> GpuFunctions:
    gpu_functions: GpuFunctions = request.param
    return gpu_functions


@pytest.fixture
def make(gpu: ctypes.CDLL, functions: GpuFunctions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a launcher for the stand-in."""
    monkeypatch.setattr(runtime_compiler, "vendor", lambda: functions)
    monkeypatch.setattr(runtime_compiler, "open_library", lambda name: gpu)
    monkeypatch.setattr(runtime_compiler, "architecture_of", lambda device: "gfx90a:xnack-")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))
    return lambda: RuntimeCompiled(DEVICE, source, tmp_path / "cache", ["first", "second"])


def launched(launcher: RuntimeCompiled, name: str) -> list[float]:
    result = torch.zeros(8)
    launcher(name, (2, 3, 4), Operands((result, None), ()), [-5, 0.25])
    return result.tolist()


EXPECTED = [2, 3, 4, 256, 7, 1, -5, 0.25]


def test_grid_stream_pointers_and_numbers_arrive(make: Make, gpu: ctypes.CDLL, functions: GpuFunctions) -> None:
    launcher = make()
    assert launched(launcher, "second") == EXPECTED
    gpu.last_option.restype = ctypes.c_char_p
    assert gpu.last_option().decode() == f"{functions.architecture_option}gfx90a:xnack-"


def test_each_kernel_is_compiled_once_and_then_read_from_the_disk(make: Make, gpu: ctypes.CDLL, tmp_path: Path) -> None:
    compilations = ctypes.c_int.in_dll(gpu, "compilations")
    for _ in range(2):
        launcher = make()
        for name in ("first", "second", "second"):
            assert launched(launcher, name) == EXPECTED
    assert compilations.value == 2
    files = sorted((tmp_path / "cache" / "yolo_lightning_gfx90a_xnack-").iterdir())
    assert [file.name.split("_")[0] for file in files] == ["first", "second"]


def test_a_damaged_file_is_compiled_again(make: Make, gpu: ctypes.CDLL, tmp_path: Path) -> None:
    make()
    (file,) = (tmp_path / "cache").rglob("*.bin")
    whole = file.read_bytes()
    file.write_bytes(b"half a file")
    assert launched(make(), "first") == EXPECTED
    assert file.read_bytes() == whole
    assert ctypes.c_int.in_dll(gpu, "compilations").value == 2


@pytest.mark.parametrize("change", ["torch", "source"])
def test_the_cache_distinguishes_torch_versions_and_sources(
    change: str, make: Make, gpu: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    if change == "torch":
        monkeypatch.setattr(torch, "__version__", "99.0")
        make()
    else:
        RuntimeCompiled(DEVICE, lambda kernels: "another text", make()._cache_folder, ["first"])
    assert ctypes.c_int.in_dll(gpu, "compilations").value == 2


def test_a_cache_that_cannot_be_written_is_not_needed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert launched(make(), "first") == EXPECTED


def test_error_contains_the_log_of_the_compiler(gpu: ctypes.CDLL, functions: GpuFunctions) -> None:
    with pytest.raises(
        BuildError, match=r"rtcCompileProgram failed with code 6 \(.*RTC_ERROR_COMPILATION\): line 1: #err"
    ):
        RuntimeCompiler(gpu, functions).compile("#error", "sm_75")


@pytest.mark.parametrize(("hip", "architecture"), [(None, "sm_90"), ("7.1", "gfx1030")])
def test_architecture_of_a_device_with_the_properties_of_both_vendors(
    hip: str | None, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA builds of torch also have `gcnArchName`, which contains the name of the device."""
    name = "gfx1030" if hip else "NVIDIA H200"
    properties = SimpleNamespace(name=name, gcnArchName=name, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert runtime_compiler.architecture_of(DEVICE) == architecture


def test_a_refused_launch_raises(make: Make, functions: GpuFunctions) -> None:
    launcher = make()
    launcher._functions["first"] = ctypes.c_void_p(1)
    with pytest.raises(RuntimeError, match=rf"{functions.launch} failed with code 400 \(fake error\)"):
        launched(launcher, "first")


def test_a_library_that_this_process_has_loaded_is_used_first(fake_library: Path, tmp_path: Path) -> None:
    loaded = shutil.copy(fake_library, tmp_path / "libloadedgpu.so")
    assert str(loaded) not in runtime_compiler.library_files("loadedgpu")
    ctypes.CDLL(str(loaded))
    assert next(iter(runtime_compiler.library_files("loadedgpu"))) == str(loaded)
    assert runtime_compiler.open_library("loadedgpu")._name == str(loaded)


def test_the_compiler_in_the_folder_of_torch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libhiprtc.so.7"
    library.touch()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    assert str(library) in runtime_compiler.library_files("hiprtc")


def test_error_lists_where_a_library_was_searched() -> None:
    with pytest.raises(BuildError, match=r"no library absent_gpu among .*libabsent_gpu\.so"):
        runtime_compiler.open_library("absent_gpu")


@pytest.fixture(scope="module")
def nvrtc() -> RuntimeCompiler:
    try:
        return RuntimeCompiler(runtime_compiler.open_library("nvrtc"), NVIDIA)
    except BuildError as error:
        pytest.skip(str(error))


def test_nvrtc_accepts_the_architecture_of_a_device(nvrtc: RuntimeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(gcnArchName="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    assert (
        len(nvrtc.compile(build.source(["batch_statistics_nhwc_by_four"]), runtime_compiler.architecture_of(DEVICE)))
        > 1000
    )


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
def test_nvrtc_compiles_the_kernels_without_a_toolkit(architecture: str, nvrtc: RuntimeCompiler) -> None:
    names = list(build.kernel_lines())
    for name in {*names[::9], *(name for name in names if name.endswith("winograd"))}:
        assert len(nvrtc.compile(build.source([name]), architecture)) > 1000
