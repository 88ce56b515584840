import errno
import re
import signal
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.supervision.test_next_action import facts
from yolo_lightning.supervision.classify import StallClass
from yolo_lightning.supervision.failure_record import NO_FAILURE
from yolo_lightning.supervision.next_action import cause_of
from yolo_lightning.supervision.outcome import describe_exit, error_of, record_of_output
from yolo_lightning.utils.exit_codes import ExitCode

TRACE = ("Traceback (most recent call last):", '  File "a.py", line 3, in main')


def test_last_error_counts() -> None:
    assert error_of(("ValueError: first", "RuntimeError: second")) == ["RuntimeError: second"]
    lines = ("RuntimeError: message", "\tof several lines", "", "Epoch 0:  5%|#   | 1/20")
    assert error_of(lines) == ["RuntimeError: message", "\tof several lines"]
    assert error_of(("ValueError: handled", "next step")) == []
    assert error_of(("text: ValueError: no", "")) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "could not watch"),
        (0, "exit code 0"),
        (143, "stopped by SIGTERM"),
        (-11, "SIGSEGV"),
        (-70, "signal 70"),
        (3, "exit code 3"),
    ],
)
def test_end_is_described(code: int | None, words: str) -> None:
    assert words in describe_exit(code, NO_FAILURE, has_started=True)
    assert describe_exit(None, NO_FAILURE, has_started=False) == "the trainer could not be started"


SOCKET = "ConnectionResetError: [Errno 104] Connection reset by peer"
NO_MEMORY = "MemoryError: Caught MemoryError in DataLoader worker process 0."
NO_SHARED_MEMORY = (
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. This might be caused by insufficient shared memory (shm)."
)
LONG = """torch.AcceleratorError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (2, "error: data.root is None", "environment"),  # of a restart of a run that has trained
        (1, "KeyError: 'x'", "error"),
        (1, "lightning.fabric.utilities.exceptions.MisconfigurationException: no", "error"),
        (1, "AssertionError", "error"),
        (1, "ModuleNotFoundError: No module named 'x'", "environment"),
        (1, "OSError: [Errno 5] Input/output error", "environment"),
        (1, "RuntimeError: HIP error: unspecified launch failure", "device error"),
        (1, LONG, "device error"),
        (1, "RuntimeError: miopenStatusUnknownError", "device error"),
        (1, "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "device error"),
        (-6, "Memory access fault by GPU node-1 on address 0x7f1. Reason: Unknown.", "device error"),
        (1, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20 MiB", "out of memory"),
        (1, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "out of memory"),
        (1, "yolo_lightning.training.self_check.WrongResultError: layer model.3, error 0.4", "wrong result"),
        (1, "yolo_lightning.training.nonfinite.NonFiniteError: step 41: box nan", "not finite"),
        (1, "RuntimeError: the decoder has failed", "unknown"),
        (1, "RuntimeError: wrong number of errors in the cuda kernels", "unknown"),
        (3, "RuntimeError: HIP error: a program that handled the error", "unknown"),
        (1, "ValueError: handled\nthen a message", "unknown"),
        (1, "", "unknown"),
        (0, "ValueError: handled", "unknown"),
        (-11, "", "crash"),
        (-9, "ValueError: long ago", "killed"),
        (1, NO_MEMORY, "loader crash"),
        (1, NO_SHARED_MEMORY, "loader crash"),
        (1, SOCKET, "loader crash"),
        (-9, SOCKET, "killed"),  # the workers of a killed trainer report lost connections
        (1, "RuntimeError: DataLoader worker (pid 7) is killed\nValueError: while handling it", "loader crash"),
    ],
)
def test_cause_of_a_program_without_failure_record(code: int, lines: str, cause: str) -> None:
    record = record_of_output(code, (*TRACE, *lines.split("\n")))
    assert cause_of(facts(code=code, record=record)) is StallClass(cause), record


def output_of(code: str) -> tuple[str, ...]:
    """Return the lines that Python prints about the error which ends a program."""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    return tuple(line for line in done.stderr.split("\n") if line.strip())


NUMPY = r"raise ImportError('\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: libx.so: no such file\n')"
GROUP = "raise ExceptionGroup('several', [{}, ExceptionGroup('inner', [{}])])"


@pytest.mark.parametrize(
    ("code", "cause", "message"),
    [
        (NUMPY, "error", "IMPORTANT: PLEASE READ THIS Original error was: libx.so: no such file"),
        (
            r"raise ValueError('the options are wrong:\nlr must be positive')",
            "error",
            "the options are wrong: lr must be positive",
        ),
        (r"raise TypeError('no\n  such call')", "error", "no such call"),
        (
            GROUP.format("ValueError('a')", r"TypeError('b\nc')"),
            "error",
            "several (2 sub-exceptions); ValueError: a; ExceptionGroup: inner (1 sub-exception); TypeError: b",
        ),
        (
            GROUP.format("RuntimeError('a')", "OSError(5, 'no answer')"),
            "environment",
            "several (2 sub-exceptions); RuntimeError: a; ExceptionGroup: inner (1 sub-exception); "
            "OSError: [Errno 5] no answer",
        ),
        (
            GROUP.format("RuntimeError('a')", "RuntimeError('b')"),
            "unknown",
            "several (2 sub-exceptions); RuntimeError: a; ExceptionGroup: inner (1 sub-exception); RuntimeError: b",
        ),
    ],
)
def test_errors_of_several_lines(code: str, cause: str, message: str) -> None:
    record = record_of_output(1, output_of(code))
    assert record.message == message
    assert cause_of(facts(code=1, record=record, trained=False)) is StallClass(cause)


def test_error_that_other_output_follows_was_handled() -> None:
    code = "import traceback\ntry: {}['a']\nexcept KeyError: traceback.print_exc()\n"
    lines = output_of(code)
    assert record_of_output(1, lines) is not NO_FAILURE
    assert record_of_output(1, (*lines, "trains without a")) is NO_FAILURE
    assert record_of_output(1, (*TRACE, "ValueError: handled:", *lines, "trains without a")) is NO_FAILURE


def test_error_in_the_output_has_errno_bases_and_traceback() -> None:
    record = record_of_output(1, ("Traceback", *TRACE, "FileNotFoundError: [Errno 2] No such file: 'a.png'"))
    assert record.errno == errno.ENOENT
    assert "OSError" in record.names
    assert record.fingerprint == "FileNotFoundError a.py:3"
    assert record_of_output(-signal.SIGSEGV, ("nothing",)) is NO_FAILURE


def test_error_at_a_sample_names_it() -> None:
    lines = [
        "ValueError: Caught ValueError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):",
        "ValueError: broken codec",
        "while reading image id=20200502114223915",
        "",
    ]
    record = record_of_output(1, lines)
    assert record.samples == ("id=20200502114223915",)
    assert cause_of(facts(code=1, record=record)) is StallClass.SAMPLE
    assert describe_exit(1, record, has_started=True).endswith(
        "ValueError: broken codec, at the sample id=20200502114223915"
    )


def test_exit_codes_are_those_of_the_page_and_below_those_of_shells() -> None:
    page = (REPOSITORY / "docs/usage.md").read_text()
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(ExitCode)
    assert max(ExitCode) < 126
