import re

import pytest

from tests.conftest import REPOSITORY
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.outcome import diagnose_exit, error_of, is_recoverable
from yolo_lightning.utils.exit_codes import ExitCode

TRACE = ("Traceback (most recent call last):", '  File "a.py", line 3, in main')


@pytest.mark.parametrize(
    ("code", "line", "mended"),
    [
        (2, "error: data.root is None", False),
        (1, "ValueError: bad", False),
        (1, "KeyError: 'x'", False),
        (1, "lightning.fabric.utilities.exceptions.MisconfigurationException: no", False),
        (1, "AssertionError", False),
        (1, "ModuleNotFoundError: No module named 'x'", False),
        (1, "RuntimeError: HIP error: unspecified launch failure", True),
        (1, "torch.OutOfMemoryError: HIP out of memory", True),
        (1, "OSError: [Errno 5] Input/output error", True),
        (1, "", True),  # faulthandler's last resort
        (0, "", True),
        (-9, "ValueError: long ago", True),
        (1, "ValueError: handled\nthen a message", True),
        (3, "ValueError: the program chose its exit code", True),
    ],
)
def test_which_ends_are_worth_another_try(code: int, line: str, mended: bool) -> None:
    assert is_recoverable(code, (*TRACE, *line.split("\n"))) == mended


def test_death_of_a_worker_is_worth_it_whatever_it_raised() -> None:
    lines = ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "ValueError: while handling it")
    assert is_recoverable(1, lines)
    found = diagnose_exit(1, lines)
    assert found.kind is StallClass.LOADER_CRASH
    assert "DataLoader worker" in found.sentence


def test_last_error_counts() -> None:
    assert error_of(("ValueError: first", "RuntimeError: second")) == "RuntimeError: second"
    assert (
        error_of(("RuntimeError: message", "\tof several lines", "", "Epoch 0:  5%|#   | 1/20"))
        == "RuntimeError: message"
    )
    assert error_of(("ValueError: handled", "next step")) == ""
    assert error_of(("text: ValueError: no", "")) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (143, "stopped by SIGTERM"), (-11, "SIGSEGV"), (-70, "signal 70"), (3, "exit code 3")],
)
def test_end_is_described(code: int, words: str) -> None:
    assert words in diagnose_exit(code, ()).sentence


CRASH_IN_CONVOLUTION = """Fatal Python error: Segmentation fault

Thread 0x00007f0a6ffff700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0b00000740 (most recent call first):
  File "/site-packages/torch/nn/modules/conv.py", line 543 in _conv_forward
  File "/site-packages/torch/nn/modules/conv.py", line 548 in forward"""


@pytest.mark.parametrize(
    ("code", "lines", "kind", "in_kernel"),
    [
        (1, "RuntimeError: HIP error: unspecified launch failure", StallClass.DEVICE_ERROR, False),
        (
            1,
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call.\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
            StallClass.DEVICE_ERROR,
            False,
        ),
        (1, "RuntimeError: miopenStatusUnknownError", StallClass.DEVICE_ERROR, False),
        (1, "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", StallClass.DEVICE_ERROR, False),
        (-6, "Memory access fault by GPU node-1 on address 0x7f1. Reason: Unknown.", StallClass.DEVICE_ERROR, False),
        (1, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20 MiB", StallClass.OUT_OF_MEMORY, False),
        (1, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", StallClass.OUT_OF_MEMORY, False),
        (
            1,
            "yolo_lightning.training.self_check.WrongResultError: layer model.3, error 0.4",
            StallClass.WRONG_RESULT,
            False,
        ),
        (
            2,
            "error: step 41: the loss is not finite (box nan); images 7: 5 consecutive non-finite values after 3 "
            "rollbacks (model.guard.max_rollbacks); lower model.recipe.lr0 or check these images",
            StallClass.NOT_FINITE,
            False,
        ),
        (-11, "", StallClass.CRASH, False),
        (-11, CRASH_IN_CONVOLUTION, StallClass.CRASH, True),
        (-7, CRASH_IN_CONVOLUTION.replace("_conv_forward", "read"), StallClass.CRASH, False),
        (-9, CRASH_IN_CONVOLUTION, StallClass.UNKNOWN, False),
        (1, "OSError: [Errno 5] Input/output error", StallClass.UNKNOWN, False),
        (1, "RuntimeError: the decoder has failed", StallClass.UNKNOWN, False),
        (1, "RuntimeError: wrong number of errors in the cuda kernels", StallClass.UNKNOWN, False),
        (3, "RuntimeError: HIP error: a program that handled the error", StallClass.UNKNOWN, False),
    ],
)
def test_class_of_an_end_by_the_computation(code: int, lines: str, kind: StallClass, in_kernel: bool) -> None:
    found = diagnose_exit(code, (*TRACE, *lines.split("\n")))
    assert (found.kind, found.in_kernel) == (kind, in_kernel), found.sentence
    assert not found.moves_down  # that of the loader


def test_exit_codes_are_those_of_the_page_and_below_those_of_shells() -> None:
    page = (REPOSITORY / "docs/usage.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(ExitCode)
    assert max(ExitCode) < 126


SOCKET = "ConnectionResetError: [Errno 104] Connection reset by peer"
NO_MEMORY = "MemoryError: Caught MemoryError in DataLoader worker process 0."
NO_SHARED_MEMORY = (
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. This might be caused by insufficient shared memory (shm)."
)


@pytest.mark.parametrize(
    ("code", "line", "kind", "moves_down", "sentence"),
    [
        (1, NO_MEMORY, StallClass.LOADER_CRASH, True, NO_MEMORY),
        (1, NO_SHARED_MEMORY, StallClass.LOADER_CRASH, True, NO_SHARED_MEMORY),
        (1, SOCKET, StallClass.LOADER_CRASH, False, f"a DataLoader worker died: {SOCKET}"),
        (-9, SOCKET, StallClass.UNKNOWN, False, "the trainer was killed by SIGKILL"),
    ],
)
def test_end_by_a_worker(code: int, line: str, kind: StallClass, moves_down: bool, sentence: str) -> None:
    """The workers of a killed trainer report lost connections, too."""
    found = diagnose_exit(code, (*TRACE, line))
    assert (found.kind, found.moves_down, found.sentence) == (kind, moves_down, sentence)


def test_error_at_a_sample_names_it_and_is_worth_another_try() -> None:
    lines = [
        "ValueError: Caught ValueError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        "ValueError: broken codec",
        "while reading image id=20200502114223915",
        "",
    ]
    diagnosis = diagnose_exit(1, lines)
    assert diagnosis.suspect == "id=20200502114223915"
    assert diagnosis.sentence.endswith("ValueError: broken codec, at the sample id=20200502114223915")
    assert is_recoverable(1, lines)
    assert not is_recoverable(1, lines[:3])
    assert not diagnose_exit(1, lines[:3]).suspect
