"""Command lines of tools: switches, lists, errors of this package, and the doctor without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from yolo_lightning.commands.command_line import run_tool, spelled_out
from yolo_lightning.commands.console import check_writable
from yolo_lightning.commands.user_errors import user_errors
from yolo_lightning.errors import UserError
from yolo_lightning.options.run_spec import RunSpec
from yolo_lightning.utils.stop_signals import request

OPTIONS = {
    "json": bool,
    "check_only": bool,
    "hours_per_arm": float,
    "files": list[str] | None,
    "weights": list[float] | None,
    "thresholds": tuple[float, ...],
}


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("--json", "--json=true"),
        ("--json --hours_per_arm 2", "--json=true --hours_per_arm 2"),
        ("--json false --check_only", "--json false --check_only=true"),
        ("--check_only=false --json=true", "--check_only=false --json=true"),
        ("--no-such --json-file x", "--no-such --json-file x"),
        ("a-b -c -", "a-b -c -"),
        ("--weights 0.7 0.3 --json", "--weights=[0.7,0.3] --json=true"),
        ("--weights=[0.7,0.3]", "--weights=[0.7,0.3]"),
        ("--weights a", "--weights=[a]"),
        ("--weights 1 -1 -.5 --json", "--weights=[1,-1,-.5] --json=true"),
        ("run --files a b 3", 'run --files=["a","b","3"]'),
        ("--files null", "--files=null"),
        ("--thresholds 0.1 -0.2", "--thresholds=[0.1,-0.2]"),
        ("--json 0 --check_only -1 RUN", "--json 0 --check_only -1 RUN"),
        ("--json RUN", "--json=true RUN"),
    ],
)
def test_words_are_spelled_out(typed: str, spelled: str) -> None:
    assert [word.replace(", ", ",") for word in spelled_out(typed.split(), OPTIONS)] == spelled.split()


def test_list_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="weights needs one or more values"):
        spelled_out(["--weights", "--json"], OPTIONS)


def test_refusal_of_lightning_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    with pytest.raises(SystemExit, match="2"), user_errors():
        raise MisconfigurationException("could not find the monitored key")
    assert capsys.readouterr().err == "error: could not find the monitored key\n"


def test_refusal_after_the_first_step_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fails_after_a_step() -> None:
        request.deferred = True  # as after the first step of a fit
        raise UserError("weight has another shape")

    with pytest.raises(UserError, match="shape"), user_errors():
        fails_after_a_step()
    with pytest.raises(SystemExit, match="2"), user_errors():
        raise UserError("weight has another shape")
    assert capsys.readouterr().err == "error: weight has another shape\n"


def test_those_of_others_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal"), user_errors():
        int("x")


@pytest.mark.parametrize("is_closed", [True, False])
def test_closed_output_ends_a_command_without_a_traceback_and_other_pipes_do_not(is_closed: bool) -> None:
    raised = "print('x' * 100_000)" if is_closed else "raise BrokenPipeError"
    script = f"from yolo_lightning.commands.user_errors import user_errors\nwith user_errors():\n    {raised}"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    if is_closed:
        process.stdout.close()
        process.stdout = None
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error == b"" if is_closed else error.endswith(b"BrokenPipeError\n")


def test_the_doctor_runs_from_the_command_line_without_torch() -> None:
    code = """
import sys
sys.argv = ["yolo_lightning", "doctor", "--json", "--probes", "false"]
from yolo_lightning.__main__ import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["machine"]["cores"] >= 1
    assert done.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stop FILE", r"run folder .*data\.yaml is not a folder"),
        ("stop RUN --wait_s -5", r"--wait_s must be >= 0, got -5"),
        ("doctor --run FILE", r"--run must be the parent folder of run folders, got the file .*data\.yaml"),
        ("report FILE", r"run folder .*data\.yaml is not a folder"),
        ("report RUN --output FILE/x.html", r"output .*data\.yaml/x\.html cannot be written: its folder is a file"),
        ("report RUN --output FILE", r"output must end in \.html, got .*data\.yaml"),
        ("service install FILE --show", r"data\.yaml must be the configuration of a fit, with keys of data, model"),
        ("supervise --restart_options='x -- python -c pass", r"--restart_options \"'x\" cannot be split .*No closing"),
        ("predict FILE --output .", r"output must be a new folder, got '\.'"),
    ],
)
def test_wrong_words_of_commands_are_errors_before_the_work(words: str, message: str, tmp_path: Path) -> None:
    file, run = tmp_path / "data.yaml", tmp_path / "run"
    file.write_text("train: images\nnames: [car]\n")
    (run / "checkpoints").mkdir(parents=True)
    spec = RunSpec(tuple(words.replace("FILE", str(file)).replace("RUN", str(run)).split()))
    with pytest.raises(ValueError, match=message):
        run_tool(spec)
    assert file.read_text() == "train: images\nnames: [car]\n"


def test_file_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    check_writable(tmp_path / "new/out.pt", ".pt")
    for name in ("Train.json", "", "."):
        with pytest.raises(ValueError, match=r"must end in \.pt, got .*Train|must be a file, got a folder"):
            check_writable(tmp_path / name, ".pt")
