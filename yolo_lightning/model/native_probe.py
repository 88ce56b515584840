"""Choice of `backend: auto`: a child process probes whether native convolutions work, are correct and are fast.

The child runs `native_trial`. It may crash or hang: a vendor library without kernels for a GPU does either, and a
process that waits for a hung GPU cannot continue.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, get_args

import msgspec
import torch

from yolo_lightning.conv import measurement_cache
from yolo_lightning.conv.measurement_cache import describe_environment
from yolo_lightning.model.convolution_settings import Convolution, ConvolutionSettings
from yolo_lightning.model.native_failures import known_failure, verdicts_file
from yolo_lightning.model.native_trial import VENDOR_FREE, Half, Trial
from yolo_lightning.utils.announced_operations import PREFIX, last_operation
from yolo_lightning.utils.rank_zero import rank_zero_info

Outcome = Literal["works", "crashed", "hung", "wrong", "slower", "failed"]

LARGEST_ERROR = 0.1
"""Relative to the largest value. On a CPU, errors are a third of it with bfloat16 and a fortieth with float16; wrong
kernels give about 1."""
MAX_SLOWDOWN = 1.1
"""Native time divided by gemm time. A smaller difference is within the noise, and native convolutions are preferred."""
GRACE_S = 5.0
"""Time limit for the exit of a killed process, seconds; a process inside a driver call may never exit."""
LONGEST_TRIAL = 4
"""Time limit of a trial that makes progress, as a multiple of the time limit without progress.

With the default of `model.convolution.probe_timeout_s` the trial ends before the supervisor's phase timeout of the
set-up, 300 s.
"""
POLL_S = 1.0
COMPILER_CACHES = {
    "MIOPEN_CUSTOM_CACHE_DIR": "~/.cache/miopen",
    "MIOPEN_USER_DB_PATH": "~/.config/miopen",
    "CUDA_CACHE_PATH": "~/.nv/ComputeCache",
    "AMD_COMGR_CACHE_DIR": "~/.cache/comgr",
}
"""Folders in which vendor libraries store compiled kernels, by the environment variable that replaces the folder."""
SWITCHES = ("MIOPEN_", "HSA_OVERRIDE", "ONEDNN_", "ATEN_CPU_CAPABILITY")
"""Beginnings of environment variables on which the results of probes depend."""
SHOWN_CHARACTERS = 300
TRIAL = "yolo_lightning.model.native_trial"
AUTOCAST: dict[str, Half] = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
"""Dtype of autocast by the precision of the Trainer."""


@cache
def _print_once(line: str) -> None:
    """Print a line once per process: a command may arrange several networks on one device."""
    rank_zero_info(line)


def choose_convolution(
    device: torch.device, settings: ConvolutionSettings, precision: str = "32-true"
) -> ConvolutionSettings:
    """Return the settings with the implementation and the memory format of `backend: auto` on a device, and log them.

    Settings with another backend are returned unchanged. On a CPU, `auto` means PyTorch's convolutions in
    channels_last, without a test. On other devices, native convolutions are tested on layers of `settings` in the
    `precision` of the Trainer. A memory format other than `auto` is kept; on NVIDIA GPUs `auto` is channels_last, which
    their matrix units need, and on others the one of `arrange`.
    """
    if settings.backend != "auto":
        return settings
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    if settings.memory_format == "auto" and (device.type == "cpu" or is_nvidia):
        settings = replace(settings, memory_format="channels_last")
    if device.type == "cpu":
        _print_once(f"model.convolution.backend auto: native, {settings.memory_format}, on a CPU")
        return replace(settings, backend="native")
    _print_once(
        f"model.convolution.backend auto: testing native convolutions on {device}, at most "
        f"{settings.probe_timeout_s:g} s without progress"
    )
    result = probe_native(device, settings, verdicts_file(), precision=precision)
    backend: Convolution = "native" if result.works else "gemm"
    _print_once(f"model.convolution.backend auto: {backend}; {result}")
    return replace(settings, backend=backend)


@dataclass(frozen=True)
class ProbeResult:
    """Result of a probe."""

    outcome: Outcome  # `works`: native convolutions are correct and fast; all others are reasons to avoid them
    detail: str  # short description of the evidence
    may_pass: bool = False  # whether the cause may be temporary, such as a lack of memory; such a result is not cached

    @property
    def works(self) -> bool:
        """Whether native convolutions should be used."""
        return self.outcome == "works"

    def __str__(self) -> str:
        return f"native convolutions: {self.outcome}, {self.detail}"


def probe_native(
    device: torch.device,
    settings: ConvolutionSettings,
    cache_file: Path | None = None,
    *,
    precision: str = "32-true",
    command: Sequence[str] | None = None,
    longest_s: float | None = None,
) -> ProbeResult:
    """Run native convolutions in a child process and return the result.

    Args:
        device: The tested device.
        settings: Settings of the training. The child is killed after `probe_timeout_s` without progress, which is the
            start of the next computation, or a change in `COMPILER_CACHES` or in the child's folder of temporary files:
            vendor libraries compile kernels on first use. The child may spend a quarter of this time on measurements of
            `autotune`, which later trials need not repeat.
        cache_file: File with results. A failure in a training, see `native_failures`, is valid for all settings until
            device, driver or torch change, or `doctor --retry` deletes it. Another result is used for equal settings,
            device, driver, torch version and MIOPEN_* variables; a stored `hung` only if its time limit was not
            shorter. If kernels were compiled during a trial that hung, the result is not stored: the next trial finds
            these kernels.
        precision: Precision of the Trainer.
        command: Replaces the command of the child in tests; the last line of its output must be a `Trial` as JSON.
        longest_s: Time after which the child is killed in any case; None for `LONGEST_TRIAL` times `probe_timeout_s`.
    """
    failure = known_failure(device, cache_file)
    if failure is not None:
        return ProbeResult("failed", failure)
    options = asdict(settings)
    # The layers do not depend on these.
    for name in ("backend", "cuda_graph", "probe_timeout_s", "autotune_budget_s"):
        del options[name]
    half = AUTOCAST.get(precision)
    budget_s = min(settings.autotune_budget_s, settings.probe_timeout_s / 4)
    words = [TRIAL, "--settings", json.dumps(options | {"autotune_budget_s": budget_s})]
    if half is not None:
        words += ["--precision", half]
    depends_on = options | {"precision": half}
    return stored_or_probed(device, settings, depends_on, words, _compare, cache_file, command, longest_s)


def stored_or_probed(
    device: torch.device,
    settings: ConvolutionSettings,
    depends_on: dict[str, Any],
    words: Sequence[str],
    judge: Callable[[Any], ProbeResult],
    cache_file: Path | None,
    command: Sequence[str] | None = None,
    longest_s: float | None = None,
) -> ProbeResult:
    """Return the stored result of a probe, else run the child process and store its result; see `probe_native`.

    Args:
        device: The tested device.
        settings: Settings with the time limit.
        depends_on: Options on which the result depends, besides device, driver and torch version.
        words: Module of the trial and its options, without the device and the time limit.
        judge: Returns the result for the JSON content of the last line that the child prints.
        cache_file: File with results.
        command: Replaces the command of the child in tests.
        longest_s: Time after which the child is killed in any case.
    """
    timeout_s = settings.probe_timeout_s
    if longest_s is None:
        longest_s = LONGEST_TRIAL * timeout_s
    if command is None:
        command = [sys.executable, "-m", *words, "--device", str(device), "--timeout_s", str(longest_s + GRACE_S)]
    environment = environment_of(device, depends_on)
    with suppress(KeyError, TypeError):  # a damaged entry is replaced
        stored = measurement_cache.load(cache_file, environment)
        is_too_short = stored["outcome"] == "hung" and stored["timeout_s"] < timeout_s
        if stored["outcome"] in get_args(Outcome) and not is_too_short:
            return ProbeResult(stored["outcome"], f"{stored['detail']} (stored result from {cache_file})")
    result = _probe(timeout_s, longest_s, command, judge)
    if not result.may_pass:
        verdict = {"outcome": result.outcome, "detail": result.detail, "timeout_s": timeout_s}
        measurement_cache.store(cache_file, environment, verdict)
    return result


def environment_of(device: torch.device, options: dict[str, Any]) -> str:
    """Return everything that the result depends on. A user who changes the variables wants a new probe."""
    switches = {name: value for name, value in os.environ.items() if name.startswith(SWITCHES)}
    parts = [*describe_environment(device).values(), str(sorted(switches.items())), json.dumps(options, sort_keys=True)]
    return " | ".join(parts)


def _probe(
    timeout_s: float, longest_s: float, command: Sequence[str], judge: Callable[[Any], ProbeResult]
) -> ProbeResult:
    """Run the child process and judge its end."""
    caches = (Path(os.environ.get(name) or default).expanduser() for name, default in COMPILER_CACHES.items())
    # PYTHONPATH: the package need not be installed.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Files, not pipes: a pipe cannot be read to its end while a grandchild still has it open.
    with (
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
        tempfile.TemporaryDirectory(prefix="yolo_lightning_trial_", ignore_cleanup_errors=True) as temporary,
    ):
        folders = [Path(temporary), *caches]
        files_before = _files_state(folders)  # before the child can compile its first kernel
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # Compilers write their temporary files to TMPDIR.
                env=os.environ | {"PYTHONPATH": path, "TMPDIR": temporary},
                start_new_session=True,  # a process group, which can be killed as a whole
            )
        except OSError as error:
            return ProbeResult("crashed", f"cannot start the child process: {error}", may_pass=True)
        has_compiled = False
        try:
            has_compiled = _wait(child, timeout_s, longest_s, err, folders, files_before)
        finally:
            code = child.returncode
            if code is None:
                # A process inside a driver call exits when the call returns.
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait(GRACE_S)
        return _judge(code, timeout_s, _lines(out), _lines(err), has_compiled, judge)


def _wait(
    child: "subprocess.Popen[bytes]",
    timeout_s: float,
    longest_s: float,
    err: IO[str],
    folders: Sequence[Path],
    files: tuple[int, int],
) -> bool:
    """Wait for the child within the limits; return whether files in `folders` changed since their state was `files`."""
    began_s = time.monotonic()
    progress_s = began_s
    begun_computations = 0
    has_compiled = False
    while time.monotonic() < min(progress_s + timeout_s, began_s + longest_s):
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(POLL_S, timeout_s / 5))
            break
        # The child shares the position in the file, so that the position must not change.
        computations = os.pread(err.fileno(), os.fstat(err.fileno()).st_size, 0).count(PREFIX.encode())
        changed_files = _files_state(folders)
        if changed_files != files or computations != begun_computations:
            progress_s = time.monotonic()
            has_compiled = has_compiled or changed_files != files
            files = changed_files
            begun_computations = computations
    return has_compiled


def _files_state(folders: Iterable[Path]) -> tuple[int, int]:
    """Return the number of files in the folders and their total size in bytes."""
    count = 0
    size = 0
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    size += os.stat(os.path.join(parent, name)).st_size
                    count += 1
    return count, size


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return [line.strip() for line in file if line.strip()]


def _judge(
    code: int | None,
    timeout_s: float,
    out: list[str],
    err: list[str],
    has_compiled: bool,
    judge: Callable[[Any], ProbeResult],
) -> ProbeResult:
    """Return the result for an exit code, which is negative for a signal, and None for a child that was killed."""
    operation, messages = last_operation(err)
    phase = " before the first convolution"
    if operation:
        phase = f" in: {operation}"
    last_line = ""
    if messages:
        last_line = f"; last line: {messages[-1][:SHOWN_CHARACTERS]}"
    end = f"exit code {code}"
    if code is None:
        end = f"no progress for {timeout_s:g} s,"
    elif code < 0:
        end = f"killed by signal {-code} ({signal.strsignal(-code)})"
    if code != 0 and operation.startswith(VENDOR_FREE):
        # The native layers have been computed correctly before; a repetition may find compiled kernels.
        return ProbeResult("works", f"vendor-free convolutions fail: {end}{phase}{last_line}", may_pass=True)
    if code is None:
        if has_compiled:
            end += " after kernels were compiled,"
        return ProbeResult("hung", f"{end}{phase}{last_line}", may_pass=has_compiled)
    if code != 0:
        # SIGKILL may come from the out-of-memory killer of the kernel.
        may_pass = "out of memory" in last_line or -code == signal.SIGKILL
        return ProbeResult("crashed", f"{end}{phase}{last_line}", may_pass)
    try:
        return judge(json.loads(out[-1]))
    except (IndexError, RecursionError, ValueError, msgspec.ValidationError):
        output = " ".join(out)[:SHOWN_CHARACTERS]
        return ProbeResult("crashed", f"exit code 0 without a result, output {output!r}{last_line}", may_pass=True)


def _compare(content: Any) -> ProbeResult:
    trial = msgspec.convert(content, Trial)
    measured = f"{trial.native_ms:.1f} ms, vendor-free {trial.gemm_ms:.1f} ms"
    if not trial.native_error <= LARGEST_ERROR:
        return ProbeResult("wrong", f"error {trial.native_error:.2g} of the largest value")
    if trial.gemm_failure or not trial.gemm_error <= LARGEST_ERROR:
        reason = trial.gemm_failure or f"error {trial.gemm_error:.2g} of the largest value"
        return ProbeResult("works", f"{measured}; vendor-free convolutions fail: {reason[:SHOWN_CHARACTERS]}")
    times = trial.native_ms / trial.gemm_ms
    if not times <= MAX_SLOWDOWN:
        return ProbeResult("slower", f"{times:.1f} times ({measured})")
    return ProbeResult("works", measured)
