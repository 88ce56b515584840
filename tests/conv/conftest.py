"""Run the tests of `conv` on one thread: their tensors are small, and threads on busy cores wait for each other."""

from collections.abc import Iterator

import pytest
import torch

from tests.conv.emulation import COMPILER, Guarded, compile_emulated
from yolo_lightning.conv.kernels.launcher import LibraryLauncher


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """The GPU kernels, emulated on one CPU with a fiber per thread of a block."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return Guarded(LibraryLauncher(compile_emulated(tmp_path_factory.mktemp("kernels"))))


@pytest.fixture
def unwritten_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
