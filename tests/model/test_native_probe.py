"""Probe results for child processes that work, crash, hang or print nonsense."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from yolo_lightning.conv import layer
from yolo_lightning.conv.measurement_cache import read_entries
from yolo_lightning.model import native_failures, native_probe as probe, native_trial as trial
from yolo_lightning.model.convolution_settings import ConvolutionSettings
from yolo_lightning.model.native_probe import ProbeResult, probe_native
from yolo_lightning.model.native_trial import run_trial

CPU = torch.device("cpu")
TABLE = ConvolutionSettings(algorithm="table")
GOOD: dict[str, Any] = {
    "native_error": 1e-6,
    "gemm_error": 1e-6,
    "native_ms": 10.0,
    "gemm_ms": 20.0,
    "gemm_failure": "",
}
LONG_S, SHORT_S = 30.0, 0.5


def child(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def answering(**changes: Any) -> list[str]:
    return child(f"print('a line before'); print({json.dumps(GOOD | changes)!r})")


def probed(
    command: list[str] | None, timeout_s: float = LONG_S, cache_file: Path | None = None, precision: str = "32-true"
) -> ProbeResult:
    settings = ConvolutionSettings(probe_timeout_s=timeout_s)
    return probe_native(CPU, settings, cache_file, command=command, precision=precision)


@pytest.mark.slow
def test_real_child_on_this_cpu() -> None:
    result = probed(None, 150.0)
    assert result.outcome in ("works", "slower"), str(result)
    assert "vendor-free" in result.detail


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({}, "works", "10.0 ms, vendor-free 20.0 ms"),
        ({"native_ms": 20.5}, "works", "20.5 ms, vendor-free 20.0 ms"),  # within noise
        ({"native_ms": 70.0}, "slower", "3.5 times"),
        ({"native_error": 1.0}, "wrong", "error 1 of the largest value"),
        ({"native_error": float("inf")}, "wrong", "error inf of the largest value"),
        ({"native_error": float("nan")}, "wrong", "error nan of the largest value"),
        ({"gemm_failure": "RuntimeError: no BLAS", "gemm_ms": 1.0}, "works", "vendor-free convolutions fail: Runtime"),
        ({"gemm_error": 1.0}, "works", "vendor-free convolutions fail: error 1 of the largest value"),
    ],
)
def test_trial_is_judged(changes: dict[str, Any], outcome: str, words: str) -> None:
    result = probed(answering(**changes))
    assert (result.outcome, result.works) == (outcome, outcome == "works")
    assert words in str(result)


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        (
            "print('probe: native 3x3', file=sys.stderr); raise RuntimeError('miopenStatusUnknownError')",
            "exit code 1 in: native 3x3; last line: RuntimeError: miopenStatusUnknownError",
        ),
        ("os.kill(os.getpid(), 11)", "killed by signal 11 (Segmentation fault) before the first convolution"),
        (f"os.kill(os.getpid(), {signal.SIGRTMIN + 1})", f"killed by signal {signal.SIGRTMIN + 1} ("),
    ],
)
def test_exception_or_signal_is_a_crash_with_its_last_line_and_the_convolution(end: str, detail: str) -> None:
    result = probed(child(f"import os, sys; {end}"))
    assert result.outcome == "crashed"
    assert result.detail.startswith(detail)


def test_hanging_child_is_killed_in_time(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hang = "import os, sys, time\nprint('probe: native 80x80', file=sys.stderr, flush=True)\n"
    hang += f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    start = time.monotonic()
    result = probed(child(hang), SHORT_S)
    assert time.monotonic() - start < SHORT_S + probe.GRACE_S
    assert (result.outcome, result.detail) == ("hung", "no progress for 0.5 s, in: native 80x80")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def lasting(work: str) -> list[str]:
    """Return a child that repeats `work` for three times `SHORT_S` and then prints a good trial."""
    return child(
        "import os, sys, tempfile, time\n"
        "for number in range(8):\n"
        f"    {work}\n"
        f"    time.sleep({3 * SHORT_S / 8})\n"
        f"print({json.dumps(GOOD)!r})"
    )


NEXT_SHAPE = "print('probe: native', number, file=sys.stderr, flush=True)"
COMPILES = "open(os.path.join({folder}, f'kernel{{number}}'), 'w').close()"


@pytest.mark.parametrize(
    ("work", "outcome"),
    [
        (NEXT_SHAPE, "works"),
        (COMPILES.format(folder="os.environ['MIOPEN_CUSTOM_CACHE_DIR']"), "works"),
        (COMPILES.format(folder="tempfile.gettempdir()"), "works"),
        ("print('still here', number, file=sys.stderr, flush=True)", "hung"),
    ],
    ids=["next shape", "compiler cache", "temporary files of a compiler", "output"],
)
def test_only_progress_extends_the_time_limit(
    work: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIOPEN_CUSTOM_CACHE_DIR", str(tmp_path))
    assert probed(lasting(work), SHORT_S).outcome == outcome


def test_progress_does_not_extend_the_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LONGEST_TRIAL", 1)
    assert probed(lasting(NEXT_SHAPE), SHORT_S).outcome == "hung"


def test_hang_after_compilation_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIOPEN_CUSTOM_CACHE_DIR", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir()
    file = tmp_path / "probe.json"
    work = COMPILES.format(folder="os.environ['MIOPEN_CUSTOM_CACHE_DIR']").format(number=0)
    begins_in_time_s = 5.0  # for the start of a child while other tests use all cores
    result = probed(child(f"import os, time\nnumber = 0\n{work}\ntime.sleep(600)"), begins_in_time_s, file)
    assert (result.outcome, result.may_pass) == ("hung", True)
    assert "after kernels were compiled" in result.detail
    assert probed(answering(), LONG_S, file).works


@pytest.mark.whole_run
def test_grandchild_of_a_hanging_child_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        f"grandchild = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(grandchild.pid))\ntime.sleep(600)"
    )
    assert probed(child(code), 2.0).outcome == "hung"
    deadline = time.monotonic() + 5
    with suppress(OSError):
        while Path(f"/proc/{pid_file.read_text()}/cmdline").read_bytes():  # empty for a zombie
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_child_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a process in state D: the signal is sent and has no effect."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(probe.os, "killpg", lambda group, number: sent.append((group, number)))
    monkeypatch.setattr(probe, "GRACE_S", 0.2)
    start = time.monotonic()
    try:
        assert probed(child("import time; time.sleep(600)"), SHORT_S).outcome == "hung"
        assert time.monotonic() - start < 5
        assert [number for _, number in sent] == [signal.SIGKILL]
    finally:
        monkeypatch.undo()
        for group, _ in sent:
            os.killpg(group, signal.SIGKILL)


def test_interrupted_probe_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def wait(self, timeout: float | None = None) -> int:
            if self not in started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(probe.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        probed(child("import time; time.sleep(600)"))
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "text", ["", "garbage", "[]", "{}", "null", json.dumps(GOOD | {"native_error": "x"}), "{" * 20_000]
)
def test_invalid_output_is_a_crash_that_is_not_cached(text: str, tmp_path: Path) -> None:
    result = probed(child(f"print({text!r})"), cache_file=tmp_path / "probe.json")
    assert (result.outcome, result.may_pass) == ("crashed", True)
    assert "without a result" in result.detail
    assert len(result.detail) < 400
    assert not (tmp_path / "probe.json").exists()


def test_child_that_cannot_be_started() -> None:
    result = probed(["/no/such/program"])
    assert (result.outcome, result.may_pass) == ("crashed", True)
    assert "cannot start the child process" in result.detail


@pytest.mark.parametrize("command", [answering(), answering(native_ms=70.0), child("raise SystemExit(3)")])
def test_result_is_cached(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "cache" / "probe.json"
    first = probed(command, cache_file=file)
    again = probed(["/no/such/program"], cache_file=file)
    assert again.outcome == first.outcome
    assert again.detail == f"{first.detail} (stored result from {file})"


def test_hang_is_cached_for_equal_and_shorter_time_limits(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    hang = child("import time; time.sleep(600)")
    assert probed(hang, SHORT_S, file).outcome == "hung"
    assert probed(["/no/such/program"], SHORT_S, file).outcome == "hung"
    assert probed(answering(), LONG_S, file).works
    assert probed(["/no/such/program"], SHORT_S, file).works


@pytest.mark.parametrize("end", ["print('x out of memory', file=sys.stderr); sys.exit(1)", "os.kill(os.getpid(), 9)"])
def test_out_of_memory_is_not_cached(end: str, tmp_path: Path) -> None:
    result = probed(child(f"import os, sys; {end}"), cache_file=tmp_path / "probe.json")
    assert (result.outcome, result.may_pass) == ("crashed", True)
    assert probed(answering(), cache_file=tmp_path / "probe.json").works


def test_another_environment_is_probed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "probe.json"
    monkeypatch.delenv("MIOPEN_FIND_MODE", raising=False)
    assert probed(answering(native_ms=70.0), cache_file=file).outcome == "slower"
    monkeypatch.setenv("MIOPEN_FIND_MODE", "2")
    assert probed(answering(), cache_file=file).outcome == "works"
    monkeypatch.delenv("MIOPEN_FIND_MODE")
    assert probed(["/no/such/program"], cache_file=file).outcome == "slower"


@pytest.mark.parametrize("finding", [{}, {"outcome": "odd"}, {"outcome": []}, {"outcome": "hung", "detail": ""}])
def test_damaged_finding_is_replaced(finding: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    assert probed(answering(), cache_file=file).works
    (environment,) = read_entries(file)
    file.write_text(json.dumps({"format": 2, "environments": {environment: finding}}))
    assert probed(answering(native_ms=70.0), cache_file=file).outcome == "slower"


def test_wrong_layers_are_found_by_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CASES", (trial.ProbeCase(4, 6, 3, 1, 12),))
    right = run_trial(CPU, TABLE)
    assert max(right.native_error, right.gemm_error) < 1e-4
    native = torch.nn.Conv2d._conv_forward

    def off_by_one_channel(self: Any, input: torch.Tensor, *arguments: Any) -> torch.Tensor:
        output = native(self, input, *arguments)
        return output.roll(1, dims=1) if input.dtype == torch.float32 else output

    monkeypatch.setattr(torch.nn.Conv2d, "_conv_forward", off_by_one_channel)
    wrong = run_trial(CPU, TABLE)
    assert wrong.native_error > 0.5
    assert wrong.gemm_error == right.gemm_error


def test_trial_reports_a_failure_of_the_vendor_free_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("no BLAS")

    monkeypatch.setattr(trial, "CASES", (trial.ProbeCase(4, 6, 3, 1, 12),))
    monkeypatch.setitem(layer._CONVOLUTIONS, 2, fail)
    result = run_trial(CPU, TABLE)
    assert result.gemm_failure == "RuntimeError: no BLAS"
    assert result.native_error < 1e-4
    assert result.gemm_ms == float("inf")


@pytest.mark.whole_run
def test_orphaned_child_exits_after_the_time_limit() -> None:
    code = (
        "import time; from jsonargparse import auto_cli; from yolo_lightning.model import native_trial as trial;"
        "trial.run_trial = lambda *arguments: time.sleep(600);"
        "auto_cli(trial.main, args=['--device', 'cpu', '--timeout_s', '0.3'], as_positional=False)"
    )
    root = str(Path(probe.__file__).parents[2])
    end = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=False
    )
    assert end.returncode == 1
    assert "Timeout" in end.stderr


def test_time_out_of_the_vendor_free_layers_is_no_hang_of_the_native_ones(tmp_path: Path) -> None:
    phase = "probe: vendor-free convolution, 3 to 16"
    code = f"import sys, time; print({phase!r}, file=sys.stderr, flush=True); time.sleep(600)"
    result = probed(child(code), SHORT_S, tmp_path / "probe.json")
    assert (result.outcome, result.may_pass) == ("works", True)
    assert "vendor-free convolutions fail: no progress for 0.5 s, in: vendor-free convolution, 3 to 16" in result.detail
    assert not (tmp_path / "probe.json").exists()


def test_result_is_cached_per_settings(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    assert probed(answering(native_ms=70.0), LONG_S, file).outcome == "slower"
    assert probed(answering(), LONG_S, file, "16-mixed").works
    assert probed(["/no/such/program"], LONG_S, file).outcome == "slower"


def test_failure_in_a_training_revokes_the_verdict_for_all_settings(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    assert probed(answering(), LONG_S, file).works
    words = [native_failures.device_key(CPU), str(file), "GPU stall at step 31,204 in run x"]
    subprocess.run([sys.executable, "-m", "yolo_lightning.model.native_failures", *words], check=True, timeout=120)
    for precision in ("32-true", "16-mixed"):
        verdict = probed(answering(), LONG_S, file, precision)
        assert str(verdict) == "native convolutions: failed, GPU stall at step 31,204 in run x"
    assert len(read_entries(file)) == 2


def test_failure_is_that_of_a_device_driver_and_torch_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "probe.json"
    native_failures.store_failure(native_failures.device_key(CPU), file, "device error")
    assert not probed(answering(), LONG_S, file).works
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert probed(answering(), LONG_S, file).works


def test_trial_computes_layers_as_the_settings_arrange_them(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[tuple[str, bool, bool]] = []
    forward = trial.ProbedBlock.forward

    def note(block: Any, input: torch.Tensor) -> torch.Tensor:
        is_channels_last = input.is_contiguous(memory_format=torch.channels_last)
        layouts.append((type(block.conv).__name__, is_channels_last, torch.is_autocast_enabled("cpu")))
        return forward(block, input)

    monkeypatch.setattr(trial, "CASES", (trial.ProbeCase(4, 6, 3, 1, 12), trial.ProbeCase(6, 4, 1, 1, 8)))
    monkeypatch.setattr(trial.ProbedBlock, "forward", note)
    result = run_trial(CPU, TABLE, "bfloat16")
    assert 1e-4 < max(result.native_error, result.gemm_error) < probe.LARGEST_ERROR
    # The references are computed in float64 without autocast.
    assert set(layouts) == {("Conv2d", False, False), ("Conv2d", False, True), ("GemmConv2d", True, True)}


def test_layers_are_checked_on_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoFloat64(torch.Tensor):
        def double(self) -> Any:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

        def cpu(self) -> Any:  # type: ignore[override]
            return self.as_subclass(torch.Tensor)

    monkeypatch.setattr(trial, "CASES", (trial.ProbeCase(4, 6, 3, 1, 12),))
    references, inputs = trial.probed_layers(), trial.make_inputs()
    on_device = trial._results

    def results(layer: Any, input: torch.Tensor, precision: Any) -> list[torch.Tensor]:
        outputs = on_device(layer, input, precision)
        return outputs if input.dtype == torch.float64 else [output.as_subclass(NoFloat64) for output in outputs]

    monkeypatch.setattr(trial, "_results", results)
    assert trial.largest_error("native", references, references, inputs) < 1e-4
