"""Exit of the process after a stop signal, and messages of a fit that has not finished."""

import errno
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.conftest import REPOSITORY
from yolo_lightning import __main__
from yolo_lightning.checkpoints.checkpoint_file import NotSavedError, write_checkpoint
from yolo_lightning.checkpoints.run_folder import prepare
from yolo_lightning.commands import endings, fit_start
from yolo_lightning.commands.endings import reported
from yolo_lightning.commands.user_errors import user_errors
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.utils.exit_codes import ExitCode
from yolo_lightning.utils.stop_signals import STOP_SIGNALS, Stopped, StopRequest, pasteable

WAITS = """
import signal, time
from yolo_lightning.utils.stop_signals import request
{ignored}
request.install()
request.deferred = {deferred}
print("ready", flush=True)
end_s = time.monotonic() + {seconds}
while time.monotonic() < end_s:
    time.sleep(0.01)
print("number", request.number)
"""


def waiting(*, deferred: bool = True, ignores: bool = False, seconds: float = 60.0) -> subprocess.Popen[str]:
    """A process that waits with the handlers in place."""
    how = "SIG_IGN" if ignores else "default_int_handler"
    script = WAITS.format(deferred=deferred, seconds=seconds, ignored=f"signal.signal(signal.SIGINT, signal.{how})")
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_process_with_nothing_to_save_ends_at_once_without_a_traceback(number: int) -> None:
    process = waiting(deferred=False)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_ctrl_c_ends_a_process_that_is_stopping_at_once(number: int) -> None:
    process = waiting()
    process.send_signal(number)
    assert process.stderr is not None
    while "Ctrl-C again ends it at once" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT


def test_second_sigterm_changes_nothing() -> None:
    process = waiting(seconds=1.0)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "number 15\n")


def test_ignored_sigint_stays_ignored() -> None:
    process = waiting(deferred=False, ignores=True, seconds=0.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, "number None\n")


def test_command_that_is_stopped_before_a_step_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def raises(spec: RunSpec) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(sys, "argv", ["yolo_lightning", "fit", "--print_config"])  # no data is needed
    monkeypatch.setattr(fit_start, "start_supervisor", raises)
    monkeypatch.setattr(__main__.request, "install", lambda: None)
    with pytest.raises(SystemExit) as stopped:
        __main__.main()
    assert stopped.value.code == 143
    assert capfd.readouterr().err.strip() == "stopped by SIGTERM before a step was trained: nothing to save"


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After seven steps, in a run folder without checkpoints."""
    monkeypatch.setattr(endings, "steps_begun", lambda _: 7)
    monkeypatch.setattr(endings, "request", StopRequest())
    return SimpleNamespace(
        default_root_dir=str(tmp_path / "my run"), is_global_zero=True, state=SimpleNamespace(finished=False)
    )


def save(folder: str, steps: int) -> None:
    write_checkpoint({"state_dict": {}, "steps": steps}, Path(folder) / f"checkpoints/step-{steps:09d}.ckpt")


def fails(error: BaseException | None) -> None:
    if error is not None:
        raise error


def said(trainer: Any, error: BaseException | None, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Exit code and line where `error` ends a fit."""
    with pytest.raises(SystemExit) as ended, reported(trainer):
        fails(error)
    (line,) = capsys.readouterr().err.splitlines()
    return ended.value.code, line


def test_stopped_fit_names_the_command_that_resumes_it(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    save(trainer.default_root_dir, 7)
    endings.request.number = signal.SIGINT
    code, line = said(trainer, SIGTERMException(), capsys)
    options = f"'--config={trainer.default_root_dir}/spec.json' --resume"
    command = pasteable([sys.executable])
    assert code == 130
    assert line == f"stopped by SIGINT after step 7; resume with: {command} -m yolo_lightning fit {options}"


@pytest.mark.parametrize(
    ("saved", "is_supervised", "is_finished", "words"),
    [
        (5, False, False, "saved up to step 5; resume with: "),
        (7, True, False, "saved in "),  # the supervisor prints the command
        (None, False, False, "nothing is saved: start again"),
        (7, False, True, "the fit had finished"),  # the signal still ends a chain of commands
    ],
)
def test_stopped_fit_says_what_is_saved(
    saved: int | None,
    is_supervised: bool,
    is_finished: bool,
    words: str,
    trainer: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings, "is_supervised", lambda: is_supervised)
    trainer.state.finished, endings.request.number = is_finished, signal.SIGTERM
    if saved is not None:
        save(trainer.default_root_dir, saved)
    code, line = said(trainer, None if is_finished else SIGTERMException(), capsys)
    assert code == 143
    assert line.startswith(f"stopped by SIGTERM after step 7; {words}")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "a/b"),
            ExitCode.DISK_FULL,
            "error: disk full: [Errno 28] No space left",
        ),
        (OSError(errno.EDQUOT, "Quota exceeded"), ExitCode.DISK_FULL, "in fails (test_endings.py:"),
        (
            NotSavedError(errno.ENOSPC, "No space left", "a/b"),
            ExitCode.DISK_FULL,
            "the last checkpoint could not be saved",
        ),
        (NotSavedError(errno.EIO, "Input/output error"), ExitCode.NOT_SAVED, "the last checkpoint could not be saved"),
    ],
)
def test_file_that_cannot_be_written_ends_with_a_code_of_its_own_and_one_line(
    error: OSError, code: int, words: str, trainer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    actual_code, line = said(trainer, error, capsys)
    assert actual_code == code
    assert words in line


def test_full_disk_before_the_training_has_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "run")

    monkeypatch.setattr(Path, "mkdir", no_space)
    with pytest.raises(SystemExit) as ended, user_errors():
        prepare(tmp_path / "run")
    assert ended.value.code == ExitCode.DISK_FULL
    assert capsys.readouterr().err == "error: disk full: [Errno 28] No space left on device: 'run'\n"


def test_other_errors_keep_their_traceback(trainer: Any) -> None:
    with pytest.raises(PermissionError), reported(trainer):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_output_after_the_terminal_has_closed_is_no_error() -> None:
    """A fit must reach its checkpoint after a log-out, although a write to the closed terminal is an error."""
    terminal, inner = pty.openpty()
    script = WAITS.format(deferred=True, ignored="", seconds=60).replace(
        "time.monotonic() < end_s", "not request.number"
    )
    words = [sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{script}"]
    process = subprocess.Popen(words, cwd=REPOSITORY, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    while b"\n" not in os.read(terminal, 1000):
        pass
    os.close(terminal)  # the kernel sends SIGHUP to the session
    assert process.wait(20) == 0
