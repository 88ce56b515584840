"""`supervise`: the example of docs/supervise.md, which hangs once and is restarted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.helpers.program import COMMAND, run_python
from yolo_lightning.commands.command_line import run_tool
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.supervision.heartbeat import heartbeat

PAGE = REPOSITORY / "docs" / "supervise.md"
HANG = """    if step == 5 and not os.path.exists("hung"):
        open("hung", "w").close()
        import time; time.sleep(1000)
"""
PLAIN = """
import os, sys, time
from yolo_lightning import heartbeat
print("started with", sys.argv[1:], flush=True)
heartbeat("setup", 0)
open("starts", "a").write("x")
starts = len(open("starts").read())
"""


def supervise(
    folder: Path, script: str, *options: str, words: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    short = ["--supervision.poll_s=0.05", "--supervision.kill_after_s=0.1", "--supervision.pause_s=0.05"]
    command = [*COMMAND, "supervise", "--run", "run", *short, *options, "--", sys.executable, "train.py", *words]
    return run_python(folder, *command)


def log_of(folder: Path) -> str:
    return (folder / "run" / "run.log").read_text()


@pytest.mark.whole_run
def test_example_of_the_page_is_restarted_after_a_hang(tmp_path: Path) -> None:
    script = PAGE.read_text().split("```python\n")[1].split("```")[0]
    mark = '    heartbeat("step", step)\n'
    assert mark in script
    timeout = "--supervision.phase_timeouts.step_s=8"
    done = supervise(tmp_path, script.replace(mark, mark + HANG), "--checkpoints", "last.pt", timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    import torch

    assert torch.load(tmp_path / "last.pt")[0] == 20
    report = min((tmp_path / "run" / "incidents").glob("*/incident.json"))
    assert "restart" in json.loads(report.read_text())["outcome"]


@pytest.mark.whole_run
def test_restart_adds_options_after_progress_and_exit_code_zero_finishes(tmp_path: Path) -> None:
    script = f"{PLAIN}open('a.pt', 'a').write('x')\nos._exit(0 if starts == 3 else 9)\n"
    options = ("--restart_options=--resume now", "--checkpoints", "*.pt", "--supervision.attempts=1")
    done = supervise(tmp_path, script, *options, words=("--lr", "0.1"))
    assert done.returncode == 0, done.stdout + done.stderr
    started = [line for line in log_of(tmp_path).splitlines() if "started with" in line]
    assert [line.partition("with ")[2] for line in started] == [
        "['--lr', '0.1']",
        *["['--lr', '0.1', '--resume', 'now']"] * 2,
    ]


@pytest.mark.whole_run
@pytest.mark.parametrize("options", [(), ("--checkpoints", "*.pt")], ids=["no pattern", "unchanged"])
def test_supervisor_gives_up_without_a_new_checkpoint(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    script = f"{PLAIN}heartbeat('step', 3 * starts)\nos._exit(9)\n"
    done = supervise(tmp_path, script, "--supervision.attempts=2", *options)
    assert done.returncode == 76, done.stdout + done.stderr
    assert (tmp_path / "starts").read_text() == "xx"


SILENT = """
import sys, time
open("starts", "a").write("x")
starts = len(open("starts").read())
for number in range(40):
    {sign}
    if starts == 1 and number == 30:
        time.sleep(1000)
    time.sleep(0.1)
"""


@pytest.mark.whole_run
@pytest.mark.parametrize(
    ("sign", "options"),
    [("print(number)", ()), ("open('log.txt', 'a').write('x'); print(number)", ("--progress", "*.txt"))],
    ids=["output", "files"],
)
def test_hang_of_a_program_without_a_heartbeat(sign: str, options: tuple[str, ...], tmp_path: Path) -> None:
    script = SILENT.format(sign=sign)
    done = supervise(tmp_path, script, "--supervision.phase_timeouts.import_s=2", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "starts").read_text() == "xx"
    assert "no progress for 2." in log_of(tmp_path)
    state = json.loads((tmp_path / "run" / "supervision.json").read_text())
    assert state["trained"], "the program has worked for longer than import_s"


def test_supervise_without_a_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="supervise needs a command after --"):
        run_tool(RunSpec(("supervise", "--")))
    with pytest.raises(ValueError, match="the command after -- must begin with a program, got nope"):
        run_tool(RunSpec(("supervise", "--", "nope")))


def test_heartbeat_rejects_an_unknown_phase() -> None:
    with pytest.raises(ValueError, match=r"phase must be one of import, setup, .*got 'training'"):
        heartbeat("training")


DIES_ONCE = """
import os
from lightning.pytorch import Callback

class DieOnce(Callback):
    def on_train_batch_start(self, trainer, model, batch, batch_idx):
        if batch_idx == 6 and not os.path.exists("died"):
            open("died", "w").close()
            os._exit(9)

callbacks.append(DieOnce())
"""


@pytest.mark.whole_run
def test_heartbeat_callback_in_any_lightning_trainer(tmp_path: Path) -> None:
    script = PAGE.read_text().split("```python\n")[2].split("```")[0]
    assert "\ntrainer = " in script
    script = script.replace("\ntrainer = ", f"\n{DIES_ONCE}\ntrainer = ", 1)
    done = supervise(tmp_path, script, "--checkpoints", "out/checkpoints/*.ckpt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "checkpoints" / "step-000000012.ckpt").is_file()
    (report,) = (tmp_path / "run" / "incidents").glob("*/incident.json")
    text = report.read_text()
    assert '"phase": "step"' in text, text
