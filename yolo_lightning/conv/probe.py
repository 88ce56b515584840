"""Probe of the native convolutions of a device in a child process: do they work, are they correct, are they faster?

    python -m yolo_lightning.conv.probe --device cuda

runs the measurement of the child process and prints one line of JSON. The child may crash or hang: a
vendor library without kernels for a GPU does either, and a process that waits for a hung GPU cannot continue.
"""

import argparse
import copy
import faulthandler
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from yolo_lightning.conv.measurement_cache import MeasurementCache, describe_environment
from yolo_lightning.conv.plan import run_seconds
from yolo_lightning.conv.swap import swap_convs

Outcome = Literal["works", "crashed", "hung", "wrong", "slower"]

LARGEST_ERROR = 0.05
"""Relative to the largest value. TF32 errors are below a tenth of it; kernels for a wrong architecture give about 1."""
MAX_SLOWDOWN = 1.1
"""Native time divided by gemm time. A smaller difference is within the noise, and native convolutions are preferred."""
GRACE_S = 5.0
"""Time limit for the exit of a killed process, seconds; a process inside a driver call may never exit."""
SHOWN_CHARACTERS = 300

PHASE = "probe: "
"""Prefix of the lines on stderr that name the next computation."""
REPEATS = 5


class ProbeCase(NamedTuple):
    """A convolution without bias, then batch normalisation, in training."""

    channels: int  # of the input
    outputs: int  # channels of the output
    kernel: int  # size in each direction; the padding is half of it
    stride: int  # step between outputs, pixels
    size: int  # height and width of the input, pixels


CASES = (
    ProbeCase(64, 64, 3, 1, 40),
    ProbeCase(128, 64, 1, 1, 80),
    # gfx1010 computes small images and hangs from a size between 42 and 48 pixels on.
    ProbeCase(32, 32, 3, 1, 80),
    ProbeCase(64, 128, 3, 2, 80),
    ProbeCase(3, 16, 3, 2, 320),
    ProbeCase(128, 128, 3, 1, 20),
)
"""Layers of YOLOv8n at 640 pixels."""
BATCH = 4


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


@dataclass(frozen=True)
class Trial:
    """Result of a trial."""

    native_error: float  # `largest_error` of the native layers
    gemm_error: float  # `largest_error` of the vendor-free layers
    native_ms: float  # median time of the forward and backward pass through all cases, milliseconds
    gemm_ms: float  # time of the vendor-free layers
    gemm_failure: str  # exception of the vendor-free layers, or empty; if set, their error and time are infinite


def probe_native(
    device: torch.device,
    timeout_s: float,
    cache_file: Path | None = None,
    command: Sequence[str] | None = None,
) -> ProbeResult:
    """Run native convolutions in a child process, which is killed after `timeout_s` seconds, and return the result.

    The time limit, which must be > 0, includes the start of the child; vendor libraries may compile kernels on first
    use. A result in `cache_file` is used for an equal device, driver, torch version and MIOPEN_* variables; a stored
    `hung` only if its time limit was not shorter. `command` replaces the command of the child in tests; the last line
    of its output must be a `Trial` as JSON.
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
    """Run the child process; its exit code is negative for a signal, and None after a timeout."""
    if command is None:
        limits = ["--device", str(device), "--timeout_s", str(timeout_s + GRACE_S)]
        command = [sys.executable, "-m", "yolo_lightning.conv.probe", *limits]
    # PYTHONPATH: the package need not be installed.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Files, not pipes: a pipe cannot be read to its end while a grandchild still has it open.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=os.environ | {"PYTHONPATH": path},
                start_new_session=True,  # a process group, which can be killed as a whole
            )
        except OSError as error:
            return ProbeResult("crashed", f"cannot start the child process: {error}", may_pass=True)
        try:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout_s)
        finally:
            code = child.returncode
            if code is None:
                # A process inside a driver call exits when the call returns.
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait(GRACE_S)
        return _judge(code, timeout_s, _lines(out), _lines(err))


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


def run_trial(device: torch.device) -> Trial:
    """Compute all cases on a device, native layers first, so that their failure is found early. May hang or crash."""
    layers, inputs = make_layers()
    native = [copy.deepcopy(layer).to(device) for layer in layers]
    native_error = largest_error("native convolution", native, layers, inputs)
    gemm = [swap_convs(copy.deepcopy(layer)).to(device) for layer in layers]
    gemm_error, gemm_failure = float("inf"), ""
    try:
        gemm_error = largest_error("vendor-free convolution", gemm, layers, inputs)
    except Exception as error:
        gemm_failure = f"{type(error).__name__}: {error}"
    _announce("timing")
    moved = [input.to(device) for input in inputs]
    paths = {"native": native} if gemm_failure else {"native": native, "gemm": gemm}
    times: dict[str, list[float]] = {"native": [], "gemm": [float("inf")] if gemm_failure else []}
    for _ in range(REPEATS):
        # In turns, so that other work on the device slows both.
        for name, path in paths.items():
            times[name].append(1000 * run_seconds(partial(_pass, path, moved), device))
    native_ms, gemm_ms = (statistics.median(times[name]) for name in ("native", "gemm"))
    return Trial(native_error, gemm_error, native_ms, gemm_ms, gemm_failure)


def make_layers() -> tuple[list[nn.Sequential], list[Tensor]]:
    """Return the layers of `CASES` and an input for each, with equal values in every process."""
    layers = []
    for case in CASES:
        torch.manual_seed(0)
        convolution = nn.Conv2d(case.channels, case.outputs, case.kernel, case.stride, case.kernel // 2, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(case.outputs)))
    inputs = [torch.randn(BATCH, case.channels, case.size, case.size, generator=_generator()) for case in CASES]
    return layers, inputs


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def largest_error(
    name: str, tested: Sequence[nn.Module], references: Sequence[nn.Module], inputs: Sequence[Tensor]
) -> float:
    """Return the largest error of any output, gradient or running statistic, relative to the largest value.

    `tested` are layers for `CASES` on the tested device, `references` the same layers on the CPU, which are computed in
    float64. `name` is printed on stderr with the case before each computation.
    """
    largest = 0.0
    for case, layer, reference, input in zip(CASES, tested, references, inputs, strict=True):
        sizes = f"{case.kernel}x{case.kernel}, stride {case.stride}, {case.size}x{case.size}"
        _announce(f"{name}, {case.channels} to {case.outputs} channels, {sizes}")
        device = next(layer.parameters()).device
        found = [tensor.double().cpu() for tensor in _results(copy.deepcopy(layer), input.to(device))]
        expected = _results(copy.deepcopy(reference).double(), input.double())
        for one, other in zip(found, expected, strict=True):
            error = ((one - other).abs().max() / other.abs().max()).item()
            # This comparison also selects a NaN.
            largest = largest if error <= largest else error
    return largest


def _results(layer: nn.Module, input: Tensor) -> list[Tensor]:
    """Return the output, the gradients of input and parameters, and the running statistics."""
    leaf = input.clone().requires_grad_()
    output = layer(leaf)
    # Not the plain sum, whose gradients vanish after normalisation.
    direction = torch.randn(output.shape, generator=_generator()).to(output)
    gradients = torch.autograd.grad(output.square().mul(direction).sum(), [leaf, *layer.parameters()])
    return [output.detach(), *gradients, *(buffer for buffer in layer.buffers() if buffer.is_floating_point())]


def _announce(computation: str) -> None:
    print(f"{PHASE}{computation}", file=sys.stderr, flush=True)


def _pass(path: list[nn.Sequential], inputs: list[Tensor]) -> None:
    for layer, input in zip(path, inputs, strict=True):
        torch.autograd.grad(layer(input.requires_grad_()).square().sum(), [input, *layer.parameters()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in this process and print a `Trial` as one line of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m yolo_lightning.conv.probe",
        description="Compare native and vendor-free convolutions with float64; print errors and times as JSON.",
    )
    parser.add_argument("--device", default="cuda", help="torch device: cpu, cuda or cuda:1 (default: %(default)s)")
    parser.add_argument("--timeout_s", type=float, default=300.0, help="exit with a stack trace after this time")
    options = parser.parse_args(arguments)
    # Ends a hang if the parent has exited. The watchdog is a C thread, which does not need the interpreter lock.
    faulthandler.dump_traceback_later(options.timeout_s, exit=True)
    try:
        trial = run_trial(torch.device(options.device))
    finally:
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(asdict(trial)))


if __name__ == "__main__":
    main()
