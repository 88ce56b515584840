"""Finds out in a child process whether a device's own convolutions work, are right, and are faster than ours.

    python -m yolo_lightning.conv.probe --device cuda

is that child. It measures in its own process, prints one line of JSON, and may crash or hang instead: a vendor library
without kernels for a GPU does either, and a GPU that hangs takes its process along.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, get_args

import torch

from yolo_lightning.conv.probe_cache import Finding, ProbeCache
from yolo_lightning.conv.probe_trial import PHASE, Trial, main

Outcome = Literal["works", "crashed", "hung", "wrong", "slower"]

LARGEST_ERROR = 0.05
"""Of the largest value. TF32 stays below a tenth of it; kernels for another architecture are off by about 1."""
TOLERATED_SLOWNESS = 1.1
"""Times ours. Closer than this the two are equal within what repeated measurements differ, and native has less risk."""
GRACE_S = 5.0
"""A killed process that waits for a driver may stay for ever; after this time it is left behind."""
SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        outcome: `works` means that native convolutions are right and fast; anything else is a reason to avoid them.
        detail: The evidence, in a few words.
        may_pass: Whether something else than the convolutions may have been the cause, such as memory in use.
    """

    outcome: Outcome
    detail: str
    may_pass: bool = False

    @property
    def works(self) -> bool:
        """Whether native convolutions are the better choice."""
        return self.outcome == "works"

    def __str__(self) -> str:
        return f"native convolutions: {self.outcome}, {self.detail}"


def probe_native(
    device: torch.device,
    timeout_s: float,
    cache_file: Path | None = None,
    command: Sequence[str] | None = None,
) -> ProbeResult:
    """Try native convolutions in a child process, which is killed after `timeout_s`.

    Args:
        device: Where to compute.
        timeout_s: Seconds until the child counts as hung, its start included; above 0. Vendor libraries may compile
            kernels at first use.
        cache_file: Where findings are kept between processes; None keeps none. A finding counts for the same device,
            driver, torch and MIOPEN_* variables; one that hung only if it had as much time.
        command: What to run as the child instead; for tests. It must print a `Trial` as JSON in its last line.

    Raises:
        ValueError: If `timeout_s` is not above 0.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; it must be above 0 seconds")
    if cache_file is None:
        return _probe(device, timeout_s, command)
    cache = ProbeCache(cache_file, device)
    known = _known(cache.lookup(), timeout_s, cache_file)
    if known is not None:
        return known
    result = _probe(device, timeout_s, command)
    if not result.may_pass:
        cache.store({"outcome": result.outcome, "detail": result.detail, "timeout_s": timeout_s})
    return result


def _known(finding: Finding | None, timeout_s: float, cache_file: Path) -> ProbeResult | None:
    try:
        if finding is None or finding["outcome"] not in get_args(Outcome):
            return None
        if finding["outcome"] == "hung" and finding["timeout_s"] < timeout_s:
            return None
        return ProbeResult(finding["outcome"], f"{finding['detail']} (found earlier; kept in {cache_file})")
    except (KeyError, TypeError):
        return None


def _probe(device: torch.device, timeout_s: float, command: Sequence[str] | None) -> ProbeResult:
    if command is None:
        limits = ["--device", str(device), "--timeout_s", str(timeout_s + GRACE_S)]
        command = [sys.executable, "-m", "yolo_lightning.conv.probe", *limits]
    # Files, not pipes: they can be read at any time, whoever else still holds them open.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            code = _run(command, timeout_s, out, err)
        except OSError as error:
            return ProbeResult("crashed", f"the child process could not be started: {error}", may_pass=True)
        return _judge(code, timeout_s, _lines(out), _lines(err))


def _run(command: Sequence[str], timeout_s: float, out: IO[str], err: IO[str]) -> int | None:
    """The exit code, negative for a signal; None after a time-out."""
    # The child must find this package, installed or not. A session of its own is a process group that can be killed.
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
    """Kill, and wait a bounded time: a process inside a driver call goes only when the call returns."""
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
    said = [line for line in err if not line.startswith(PHASE)]
    last = f"; last line: {said[-1][:SHOWN_CHARACTERS]}" if said else ""
    if code is None:
        return ProbeResult("hung", f"no result after {timeout_s:g} s,{phase}{last}")
    if code != 0:
        end = f"exit code {code}" if code > 0 else f"killed by signal {-code} ({signal.strsignal(-code)})"
        # The kernel's out-of-memory killer sends SIGKILL.
        may_pass = "out of memory" in last or -code == signal.SIGKILL
        return ProbeResult("crashed", f"{end}{phase}{last}", may_pass)
    trial = _parse(out)
    if trial is None:
        shown = " ".join(out)[:SHOWN_CHARACTERS]
        return ProbeResult("crashed", f"exit code 0 without a result, but {shown!r}{last}", may_pass=True)
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
        return ProbeResult("wrong", f"off by {trial.native_error:.2g} of the largest value")
    if trial.gemm_failure or not trial.gemm_error <= LARGEST_ERROR:
        reason = trial.gemm_failure or f"off by {trial.gemm_error:.2g} of the largest value"
        return ProbeResult("works", f"{measured}; the vendor-free ones fail: {reason[:SHOWN_CHARACTERS]}")
    times = trial.native_ms / trial.gemm_ms
    if not times <= TOLERATED_SLOWNESS:
        return ProbeResult("slower", f"{times:.1f} times ({measured})")
    return ProbeResult("works", measured)


if __name__ == "__main__":
    main()
