"""Probe of the native convolutions of a device in a child process: do they work, are they correct, are they faster?

    python -m yolo_lightning.conv.probe --device cuda

runs the measurement of the child process (`probe_trial`) and prints one line of JSON. The child may crash or hang: a
vendor library without kernels for a GPU does either, and a process that waits for a hung GPU cannot continue.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, get_args

import torch

from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment
from yolo_lightning.conv.probe_trial import PHASE, Trial, main

Outcome = Literal["works", "crashed", "hung", "wrong", "slower"]

LARGEST_ERROR = 0.05
"""Relative to the largest value. TF32 errors are below a tenth of it; kernels for a wrong architecture give about 1."""
MAX_SLOWDOWN = 1.1
"""Native time divided by gemm time. A smaller difference is within the noise, and native convolutions are preferred."""
GRACE_S = 5.0
"""Time limit for the exit of a killed process, seconds; a process inside a driver call may never exit."""
SHOWN_CHARACTERS = 300


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
    timeout_s: float,
    cache_file: Path | None = None,
    command: Sequence[str] | None = None,
) -> ProbeResult:
    """Run native convolutions in a child process, which is killed after `timeout_s`, and return the result.

    Args:
        device: Device to probe.
        timeout_s: Time limit in seconds, > 0, including the start of the child. Vendor libraries may compile kernels on
            first use.
        cache_file: File that stores results between processes, or None. A stored result is used for an equal device,
            driver, torch version and MIOPEN_* variables; a stored `hung` only if its time limit was not shorter.
        command: Replaces the command of the child in tests; it must print a `Trial` as JSON in its last line.

    Raises:
        ValueError: If `timeout_s` is not > 0.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be > 0 seconds, got {timeout_s}")
    cache = MeasurementCache(cache_file)
    # A user who changes these variables tries to make native convolutions work, which requires a new probe.
    switches = {name: value for name, value in os.environ.items() if name.startswith(("MIOPEN_", "HSA_OVERRIDE"))}
    environment = " | ".join([*describe_environment(device).values(), str(sorted(switches.items()))])
    with suppress(KeyError, TypeError):  # a damaged entry is replaced
        known = cache.load(environment)
        is_too_short = known["outcome"] == "hung" and known["timeout_s"] < timeout_s
        if known["outcome"] in get_args(Outcome) and not is_too_short:
            return ProbeResult(known["outcome"], f"{known['detail']} (stored result from {cache_file})")
    result = _probe(device, timeout_s, command)
    if not result.may_pass:
        cache.store(environment, {"outcome": result.outcome, "detail": result.detail, "timeout_s": timeout_s})
    return result


def _probe(device: torch.device, timeout_s: float, command: Sequence[str] | None) -> ProbeResult:
    if command is None:
        limits = ["--device", str(device), "--timeout_s", str(timeout_s + GRACE_S)]
        command = [sys.executable, "-m", "yolo_lightning.conv.probe", *limits]
    # Files, not pipes: a pipe cannot be read to its end while a grandchild still has it open.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            code = _run(command, timeout_s, out, err)
        except OSError as error:
            return ProbeResult("crashed", f"cannot start the child process: {error}", may_pass=True)
        return _judge(code, timeout_s, _lines(out), _lines(err))


def _run(command: Sequence[str], timeout_s: float, out: IO[str], err: IO[str]) -> int | None:
    """Return the exit code, negative for a signal, or None after a timeout."""
    # PYTHONPATH: the package need not be installed. A new session is a process group, which can be killed as a whole.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.returncode is None:
            _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group and wait up to `GRACE_S`: a process inside a driver call exits when the call returns."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(GRACE_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return [line.strip() for line in file if line.strip()]


def _judge(code: int | None, timeout_s: float, out: list[str], err: list[str]) -> ProbeResult:
    phases = [line.removeprefix(PHASE) for line in err if line.startswith(PHASE)]
    phase = f" in: {phases[-1]}" if phases else " before the first convolution"
    messages = [line for line in err if not line.startswith(PHASE)]
    last = f"; last line: {messages[-1][:SHOWN_CHARACTERS]}" if messages else ""
    if code is None:
        return ProbeResult("hung", f"no result after {timeout_s:g} s,{phase}{last}")
    if code != 0:
        end = f"exit code {code}" if code > 0 else f"killed by signal {-code} ({signal.strsignal(-code)})"
        # SIGKILL may come from the out-of-memory killer of the kernel.
        may_pass = "out of memory" in last or -code == signal.SIGKILL
        return ProbeResult("crashed", f"{end}{phase}{last}", may_pass)
    trial = _parse(out)
    if trial is None:
        shown = " ".join(out)[:SHOWN_CHARACTERS]
        return ProbeResult("crashed", f"exit code 0 without a result, output {shown!r}{last}", may_pass=True)
    return _compare(trial)


def _parse(out: list[str]) -> Trial | None:
    try:
        values = json.loads(out[-1])
        failure = str(values.pop("gemm_failure"))
        trial = Trial(**{name: float(value) for name, value in values.items()}, gemm_failure=failure)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return None
    return trial if min(trial.native_ms, trial.gemm_ms) > 0 else None


def _compare(trial: Trial) -> ProbeResult:
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


if __name__ == "__main__":
    main()
