"""Ctrl-C, SIGTERM, SIGKILL, and two supervisors."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.supervision.supervised import Supervised, floors
from yolo_lightning.supervision.attempt import SAME_REQUEST_S
from yolo_lightning.utils.exit_codes import ExitCode

RESUME = "stopped by SIGINT; resume with: "


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_fault_33_healthy_trainer_may_save(number: signal.Signals, tmp_path: Path) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("SIGHUP is ignored here, as under nohup")
    supervised = Supervised(tmp_path / "run", "wait_for_sigterm", until=100, grace_s=30.0)
    supervised.wait_for("ready.json")
    supervised.process.send_signal(number)
    assert supervised.wait() == 128 + number
    assert (tmp_path / "run" / "saved.json").is_file()
    assert len(supervised.starts()) == 1
    assert supervised.left() == []


@pytest.mark.parametrize(
    ("saved", "hint"), [(False, "nothing was saved: start again without --resume"), (True, RESUME)]
)
def test_hint_names_resume_only_where_something_was_saved(saved: bool, hint: str, tmp_path: Path) -> None:
    if saved:
        (tmp_path / "run/checkpoints").mkdir(parents=True)
        (tmp_path / "run/checkpoints/step-000000001.ckpt").touch()
    supervised = Supervised(tmp_path / "run", "hang_in_set_up", until=100, grace_s=30.0)
    supervised.wait_for("starts.jsonl")
    supervised.process.send_signal(signal.SIGINT)
    assert supervised.wait() == 128 + signal.SIGINT
    last = supervised.log().rstrip().splitlines()[-1]
    assert hint in last
    assert last.endswith("--resume")


def test_fault_33_hung_trainer_is_ended_after_the_grace(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "ignore_sigterm", until=100, grace_s=0.5)
    supervised.wait_for("ready.json")
    began_s = time.monotonic()
    supervised.process.terminate()
    assert supervised.wait() == 128 + signal.SIGTERM
    assert 0.5 <= time.monotonic() - began_s < 20
    assert len(supervised.starts()) == 1
    assert supervised.left() == []


def test_second_signal_ends_the_patience(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "ignore_sigterm", until=100, grace_s=1000.0)
    supervised.wait_for("ready.json")
    supervised.process.send_signal(signal.SIGINT)
    while "SIGINT" not in supervised.log():
        time.sleep(0.02)
    supervised.process.send_signal(signal.SIGINT)
    assert supervised.wait() == 128 + signal.SIGINT
    assert supervised.left() == []


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGHUP, signal.SIGHUP), (signal.SIGTERM, signal.SIGHUP), (signal.SIGTERM, signal.SIGTERM)],
    ids=["closed terminal", "end of a session", "timeout"],
)
def test_signals_that_belong_together_are_one_request(numbers: tuple[signal.Signals, ...], tmp_path: Path) -> None:
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        pytest.skip("SIGHUP is ignored here, as under nohup")
    supervised = Supervised(tmp_path / "run", "save_slowly_on_sigterm", until=100, grace_s=30.0)
    supervised.wait_for("ready.json")
    for number in numbers:
        supervised.process.send_signal(number)
        time.sleep(0.2)
    assert supervised.wait() == 128 + numbers[0]
    assert (tmp_path / "run" / "saved.json").is_file()


def test_ctrl_c_of_a_script_does_not_end_a_run_in_its_background(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "wait_for_sigterm", until=100, grace_s=30.0, interrupt=signal.SIG_IGN)
    supervised.wait_for("ready.json")
    supervised.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert "SIGINT" not in supervised.log()
    supervised.process.terminate()
    assert supervised.wait() == 128 + signal.SIGTERM
    assert (tmp_path / "run" / "saved.json").is_file()


def test_later_signal_ends_the_patience(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "ignore_sigterm", until=100, grace_s=1000.0)
    supervised.wait_for("ready.json")
    supervised.process.terminate()
    while "SIGTERM" not in supervised.log():
        time.sleep(0.02)
    time.sleep(SAME_REQUEST_S + 0.5)
    assert supervised.process.poll() is None
    supervised.process.terminate()
    assert supervised.wait() == 128 + signal.SIGTERM


def test_signal_in_the_pause_before_a_restart_ends_the_run(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / "run", "segfault", until=100, pause_s=1000.0)
    while "restart in 300 s" not in supervised.log():
        assert supervised.process.poll() is None, supervised.log()
        time.sleep(0.02)
    starts = len(supervised.starts())
    supervised.process.terminate()
    assert supervised.wait() == 128 + signal.SIGTERM
    assert len(supervised.starts()) == starts


def test_fault_31_trainer_ends_with_its_supervisor_and_the_next_clears_up(tmp_path: Path) -> None:
    first = Supervised(tmp_path / "run", "leave_children_and_hang", until=1, allowed=floors())
    try:
        first.wait_for("left.json")
        trainer = first.starts()[0]["process"]
        while len(first.left()) < 3:  # the trainer, its resource tracker and two orphans come up
            time.sleep(0.02)
        first.process.kill()
        first.process.wait()
        end_s = time.monotonic() + 20
        while trainer in first.left() and time.monotonic() < end_s:
            time.sleep(0.02)
        orphans = first.left()
        assert trainer not in orphans
        assert orphans != []

        second = Supervised(tmp_path / "run", "none")
        assert second.wait() == ExitCode.FINISHED
        assert [pid for pid in orphans if Path(f"/proc/{pid}/stat").exists() and is_alive(pid)] == []
        assert not Path(first.starts()[0]["temporary"]).exists()
    finally:
        first.clear()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_fault_32_second_supervisor_of_a_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = Supervised(tmp_path / "run", "ignore_sigterm", until=100)
    first.wait_for("ready.json")
    assert Supervised(tmp_path / "run", "none").wait() == ExitCode.RUN_IN_USE
    assert f"process {first.process.pid} on {os.uname().nodename} trains in" in capfd.readouterr().err
    assert first.process.poll() is None
    assert len(first.starts()) == 1
    first.process.terminate()
    assert first.wait() == 128 + signal.SIGTERM
